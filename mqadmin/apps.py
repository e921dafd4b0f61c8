"""The Django applications of the dashboard."""

from django.apps import AppConfig, apps
from django.conf import settings
from django.contrib.admin import apps as admin_apps
from django.core.checks import Tags, Warning, register


class AdminConfig(admin_apps.SimpleAdminConfig):
    """The admin. mqadmin/urls.py registers its pages, and is imported with the first page."""

    default = False  # MqadminConfig is this module's default
    default_site = "mqadmin.web.admin_site.Site"


class MqadminConfig(AppConfig):
    name = "mqadmin"
    verbose_name = "Broker"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        # The admin's first page lists the applications by these names, as the side menu does.
        for label, title in (("admin", "Audit"), ("auth", "Access"), ("django_rq", "Jobs")):
            apps.get_app_config(label).verbose_name = title


@register(Tags.security, deploy=True)
def tls_in_front(app_configs, **kwargs) -> list[Warning]:
    """Return a warning for each deployment without TLS settings.

    Django's own checks (W004, W008, W010, W016) search its middleware by name, and do not find ours
    (web/middleware.py)."""
    named = ("SECURE_SSL_REDIRECT", "SECURE_HSTS_SECONDS", "SESSION_COOKIE_SECURE", "CSRF_COOKIE_SECURE")
    missing = [name for name in named if not getattr(settings, name)]
    if not missing:
        return []
    return [
        Warning(
            f"{', '.join(missing)} not set: cookies go over plain HTTP.",
            hint="Start the broker with tls.server.mode=enforcing (manage.py check_deploy sees it), or put a "
            "proxy with TLS in front and set BROKER_WEB_TLS=1.",
            id="mqadmin.W001",
        )
    ]
