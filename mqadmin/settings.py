"""Django's settings. Values that vary come from the environment, which is read here once; `runbroker` sets it
from its options.

    BROKER_DATA_DIR    directory of everything that the program writes (./data)
    BROKER_WEB_HOST    names of the dashboard besides loopback, with commas between
    BROKER_WEB_TLS     1 when a proxy in front speaks TLS: secure cookies, redirect, HSTS, X-Forwarded-Proto
                       is trusted
    BROKER_WEB_HSTS_SECONDS  how long a browser that came by TLS uses nothing else for this host name (0: no
                       header); it holds for every port of the name
    BROKER_WEB_PROXIES addresses or networks, with commas between, of proxies in front: their X-Forwarded-For
                       is trusted
    BROKER_BACKUP_DIR       where jobs make backups; without it no job makes one
    BROKER_WEB_CONNECTIONS  how many connections of the dashboard's port one address may have open (200); 0 is
                            no bound
    DATABASE_URL       another database than DIR/mqadmin.sqlite3
    REDIS_URL          another Redis than the one that runbroker starts
"""

from __future__ import annotations

import hmac
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import environ
from csp.constants import NONE, SELF, UNSAFE_EVAL, UNSAFE_INLINE
from django.core.exceptions import ImproperlyConfigured
from django.urls import reverse_lazy

from mqadmin.process.children import redis_url, with_timeout
from mqadmin.process.first_start import key_for
from mqadmin.process.places import base_directory, static_root
from mqadmin.web.trusted_proxies import MAX_ADDRESS_CONNECTIONS, proxies_of

environment = environ.Env()

BASE_DIRECTORY = base_directory()
DATA_DIRECTORY = Path(environment.str("BROKER_DATA_DIR", "data")).absolute()
BACKUP_DIRECTORY = Path(text).absolute() if (text := environment.str("BROKER_BACKUP_DIR", "")) else None

SECRET_KEY = key_for("".join(sys.argv[1:2]), DATA_DIRECTORY)
DEBUG = False
WEB_HOSTS = [host for host in environment.str("BROKER_WEB_HOST", "").replace(" ", "").split(",") if host]
# The header of no other peer is read: its writer could choose the address for which tries to log in count.
TRUSTED_PROXIES = proxies_of(
    [text for text in environment.str("BROKER_WEB_PROXIES", "").replace(" ", "").split(",") if text]
)
WEB_CONNECTIONS = environment.int("BROKER_WEB_CONNECTIONS", MAX_ADDRESS_CONNECTIONS)
if WEB_CONNECTIONS < 0:
    raise ImproperlyConfigured(
        f"BROKER_WEB_CONNECTIONS is {WEB_CONNECTIONS}, expected 0 (no bound) or a number of connections"
    )
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]", *WEB_HOSTS]

INSTALLED_APPS = [
    "unfold.apps.BasicAppConfig",
    "mqadmin.apps.AdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "servestatic",
    "django.contrib.staticfiles",
    "channels",
    "csp",
    "django_htmx",
    "django_rq",
    "mqadmin",
]

MIDDLEWARE = [
    "mqadmin.web.middleware.Security",
    "servestatic.middleware.ServeStaticMiddleware",
    "mqadmin.web.middleware.not_stored",
    "mqadmin.web.middleware.ContentSecurityPolicy",
    "mqadmin.web.middleware.Sessions",
    "mqadmin.web.middleware.Common",
    "mqadmin.web.middleware.Csrf",
    "mqadmin.web.middleware.Authentication",
    "mqadmin.web.middleware.method_not_allowed",
    "mqadmin.web.middleware.identify_caller",
    "mqadmin.web.middleware.RecordRefusals",
    "mqadmin.web.middleware.DatabaseFailures",
    "mqadmin.web.middleware.Messages",
    "mqadmin.web.middleware.Frames",
    "django_htmx.middleware.HtmxMiddleware",
]
# These checks search Django's middleware by name; ours are subclasses. For W010 there is apps.tls_in_front.
SILENCED_SYSTEM_CHECKS = ["security.W001", "security.W002", "security.W003", "security.W010"]

ROOT_URLCONF = "mqadmin.urls"
ASGI_APPLICATION = "mqadmin.web.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIRECTORY / "templates", Path(__file__).resolve().parent / "views"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "mqadmin.views.page.page_context",
            ],
        },
    }
]

# One writer at a time is enough for a dashboard. With IMMEDIATE a writer waits for the lock at its begin;
# otherwise it could fail later, when it upgrades its lock.
DATABASES = {
    "default": environment.db("DATABASE_URL")
    if "DATABASE_URL" in environment
    else {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": DATA_DIRECTORY / "mqadmin.sqlite3",
        "CONN_MAX_AGE": None,
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
    }
}

REDIS_PASSWORD = hmac.digest(SECRET_KEY.encode(), b"the jobs' Redis", "sha256").hex()
REDIS_URL = environment.str("REDIS_URL", "") or redis_url(
    DATA_DIRECTORY / "run" / "redis.sock", REDIS_PASSWORD
)
# Redis holds only jobs. JSON, never pickle: a process that can write to Redis must not be able to run code in
# a worker.
RQ_QUEUES = {
    name: {
        "URL": with_timeout(REDIS_URL),
        "DEFAULT_TIMEOUT": timeout,
        "SERIALIZER": "rq.serializers.JSONSerializer",
    }
    for name, timeout in (("default", 3_600), ("spark", 6 * 3_600))
}
RQ = {"JOB_CLASS": "mqadmin.jobs.worker.AllowedJob", "WORKER_CLASS": "mqadmin.jobs.worker.JobWorker"}

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "overview"
LOGOUT_REDIRECT_URL = "login"
SESSION_COOKIE_AGE = 14 * 24 * 3600
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_NAME = "mqadmin_session"
CSRF_COOKIE_SAMESITE = "Lax"
X_FRAME_OPTIONS = "DENY"
SECURE_REFERRER_POLICY = "same-origin"
MESSAGE_STORAGE = "django.contrib.messages.storage.cookie.CookieStorage"

# Cookies of requests by TLS are made secure where they leave (web/over_tls.py). The header is sent by TLS
# only, and not by default: it would stop plain HTTP on all other ports of the host name as well.
SECURE_HSTS_SECONDS = environment.int("BROKER_WEB_HSTS_SECONDS", 0)
# What follows is for a proxy that has TLS, before a port that is reached by plain HTTP.
if environment.bool("BROKER_WEB_TLS", False):
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    SECURE_SSL_REDIRECT = True
    SECURE_REDIRECT_EXEMPT = [r"^metrics$", r"^api/v1/(health|ready)$"]
    SECURE_HSTS_SECONDS = 365 * 24 * 3600
    SECURE_HSTS_INCLUDE_SUBDOMAINS = True
    SECURE_HSTS_PRELOAD = True
    SESSION_COOKIE_SECURE = True
    CSRF_COOKIE_SECURE = True
    CSRF_TRUSTED_ORIGINS = [f"https://{host}" for host in WEB_HOSTS]

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "object-src": [NONE],
        "base-uri": [NONE],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
        "img-src": [SELF, "data:"],
    }
}
# The admin is Unfold's: Alpine evaluates expressions in attributes and sets styles inline. Only staff may
# open it.
ADMIN_SECURITY_POLICY = {
    "DIRECTIVES": CONTENT_SECURITY_POLICY["DIRECTIVES"]
    | {"script-src": [SELF, UNSAFE_EVAL, UNSAFE_INLINE], "style-src": [SELF, UNSAFE_INLINE]},
}

LANGUAGE_CODE = "en"
USE_I18N = False
USE_TZ = True
TIME_ZONE = "UTC"

STATIC_URL = "static/"
# Ninja is imported at the first page or REST request. As an installed application it would be imported at
# every start.
_ninja = find_spec("ninja")
assert _ninja is not None and _ninja.origin is not None  # requirements-core.txt has it
STATICFILES_DIRS = [
    BASE_DIRECTORY / "static",
    ("ninja", Path(_ninja.origin).parent / "static" / "ninja"),
]
STATIC_ROOT = static_root(BASE_DIRECTORY)
# Collected files have a hash of their content in their names, and are compressed. Without collected files
# they are served from the sources, since a missing manifest would be an error. `collectstatic` makes the
# manifest. Files that this user may not read are as good as none.
COLLECTED = os.access(STATIC_ROOT / "staticfiles.json", os.R_OK) or sys.argv[1:2] in (
    ["collectstatic"],
    ["prepare"],
)
STATIC_STORAGE = (
    "servestatic.storage.CompressedManifestStaticFilesStorage"
    if COLLECTED
    else "django.contrib.staticfiles.storage.StaticFilesStorage"
)
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": STATIC_STORAGE},
}
SERVESTATIC_USE_FINDERS = not COLLECTED
SERVESTATIC_ALLOW_ALL_ORIGINS = False

UNFOLD = {
    "SITE_TITLE": "Headpond admin",
    "SITE_HEADER": "Headpond admin",
    "SITE_URL": "/",
    "SHOW_HISTORY": True,
    "SHOW_VIEW_ON_SITE": False,
    "SIDEBAR": {
        "show_search": False,
        "navigation": [
            {
                "title": "Broker",
                "items": [
                    {
                        "title": "Topics",
                        "icon": "topic",
                        "link": reverse_lazy("admin:mqadmin_topic_changelist"),
                    },
                    {
                        "title": "Consumer groups",
                        "icon": "group_work",
                        "link": reverse_lazy("admin:mqadmin_group_changelist"),
                    },
                ],
            },
            {
                "title": "Jobs",
                "items": [
                    {"title": "Jobs", "icon": "task", "link": reverse_lazy("jobs")},
                    {
                        "title": "Queues and workers",
                        "icon": "manufacturing",
                        "link": reverse_lazy("admin:django_rq_dashboard_changelist"),
                        "permission": "mqadmin.web.roles.is_admin",
                    },
                ],
            },
            {
                "title": "Access",
                "items": [
                    {
                        "title": "Users",
                        "icon": "person",
                        "link": reverse_lazy("admin:auth_user_changelist"),
                        "permission": lambda request: request.user.is_superuser,
                    },
                    {
                        "title": "Roles",
                        "icon": "badge",
                        "link": reverse_lazy("admin:auth_group_changelist"),
                        "permission": lambda request: request.user.is_superuser,
                    },
                    {
                        "title": "API tokens",
                        "icon": "key",
                        "link": reverse_lazy("admin:mqadmin_apitoken_changelist"),
                        "permission": "mqadmin.web.roles.is_admin",
                    },
                    {
                        "title": "Audit trail",
                        "icon": "history",
                        "link": reverse_lazy("admin:admin_logentry_changelist"),
                        "permission": "mqadmin.web.roles.is_admin",
                    },
                ],
            },
        ],
    },
    # The dashboard's blue, so that both have one appearance.
    "COLORS": {
        "primary": {
            "50": "oklch(97% .014 254)",
            "100": "oklch(93% .032 255)",
            "200": "oklch(88% .059 254)",
            "300": "oklch(80% .095 253)",
            "400": "oklch(70% .125 253)",
            "500": "oklch(56% .135 254)",
            "600": "oklch(48% .13 254)",
            "700": "oklch(43% .12 255)",
            "800": "oklch(38% .1 256)",
            "900": "oklch(33% .08 257)",
            "950": "oklch(26% .06 259)",
        }
    },
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "plain": {
            "class": "mqadmin.process.program_name.LogLines",
            "format": "%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        }
    },
    "filters": {"counts_security": {"()": "mqadmin.web.refused_requests.CountsSecurity"}},
    "handlers": {
        "console": {"class": "logging.StreamHandler", "formatter": "plain", "filters": ["counts_security"]}
    },
    "root": {"handlers": ["console"], "level": "WARNING"},
    "loggers": {
        "django": {"handlers": ["console"], "level": "WARNING", "propagate": False},
        "django.request": {"level": "ERROR"},
        "mqadmin": {"level": "INFO"},
        "broker_store": {"level": "INFO"},
    },
}
