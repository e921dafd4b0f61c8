"""The dashboard's settings for tests: a data directory and a database of their own, no manifest of collected
files."""

import atexit
import os
import shutil
import tempfile

os.environ["BROKER_DATA_DIR"] = tempfile.mkdtemp(prefix="mqadmin-test-")
atexit.register(shutil.rmtree, os.environ["BROKER_DATA_DIR"], ignore_errors=True)

from mqadmin.settings import *  # noqa: E402, F403

# A file: a connection in memory is never closed, and would stay in a request's thread for a test that may
# have none.
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": "mqadmin",
        "TEST": {"NAME": os.path.join(os.environ["BROKER_DATA_DIR"], "test.sqlite3")},
        # No test reads this database after a crash, so its commits do not wait for the disk.
        "OPTIONS": {"init_command": "PRAGMA journal_mode=MEMORY; PRAGMA synchronous=OFF;"},
    }
}
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
# A root without files: the middleware reads each static file when a test's client makes its first request, which
# took 0.2 s of processor time. tests/mqadmin/test_static_files.py runs a dashboard that serves them.
STATIC_ROOT = os.path.join(os.environ["BROKER_DATA_DIR"], "static")
os.mkdir(STATIC_ROOT)
SERVESTATIC_USE_FINDERS = False
