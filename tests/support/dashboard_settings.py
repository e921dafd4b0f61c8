"""Settings for a dashboard that is really served in a test: static files straight from the checkout, a
database file."""

import os

from mqadmin.settings import *  # noqa: F403
from mqadmin.settings import DATA_DIRECTORY, DATABASES, STORAGES

assert "BROKER_DATA_DIR" in os.environ, "a test's dashboard has a data directory of its own"
DATABASES = {"default": DATABASES["default"] | {"NAME": DATA_DIRECTORY / "mqadmin.sqlite3"}}
STORAGES = STORAGES | {"staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}}
SERVESTATIC_USE_FINDERS = True
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
