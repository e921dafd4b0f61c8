"""Django's settings of the child processes that run jobs and start scheduled runs.

These processes answer no request: pages, REST, the admin's pages and the websocket are not loaded. They load
the models that they read and write, and the queues.
"""

from mqadmin.settings import *  # noqa: F403
from mqadmin.settings import LOGGING as OF_THE_BROKER

INSTALLED_APPS = [
    "django.contrib.admin.apps.SimpleAdminConfig",  # the audit trail's table, without the admin's pages
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django_rq",
    "mqadmin",
]
MIDDLEWARE = []
TEMPLATES = []
# The broker's logging has filters that count refused requests; there are none here.
LOGGING = OF_THE_BROKER | {
    "filters": {},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "loggers": {name: {"level": "INFO"} for name in ("mqadmin", "broker_store")},
}
