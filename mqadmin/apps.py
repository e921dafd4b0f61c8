"""The Django application of the dashboard."""

from django.apps import AppConfig


class MqadminConfig(AppConfig):
    name = "mqadmin"
    verbose_name = "Broker"
    default_auto_field = "django.db.models.BigAutoField"
