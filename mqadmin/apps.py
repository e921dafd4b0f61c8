"""The Django application of the dashboard."""

from django.apps import AppConfig, apps


class MqadminConfig(AppConfig):
    name = "mqadmin"
    verbose_name = "Broker"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        # The admin's first page lists the applications by these names; they are what the side menu calls them.
        for label, title in (("admin", "Audit"), ("auth", "Access"), ("django_rq", "Jobs")):
            apps.get_app_config(label).verbose_name = title
