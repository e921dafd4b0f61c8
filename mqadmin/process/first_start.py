"""Creates at the first start the secret key and the first user.

No password is shipped. The first start makes the user `admin` and prints a password for one login, which must
set another: `FirstLogin` marks such a user, the login page invalidates the password at the login, and the
middleware shows only the password page until a new one is set. Until then each start prints a new password,
so one that was overlooked can be replaced.
"""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from pathlib import Path

KEY_FILE = "secret_key"
SECRET_BYTES = 48
# Commands that use a broker, or read its database or a store. They serve no login, so they create no key.
MAKE_NO_KEY = frozenset(
    {
        "topic",
        "group",
        "message",
        "store",
        "token",
        "check_store",
        "crash_lab",
        "demo",
        "pipeline",
        "backup",
        "restore",
        "check_deploy",
        "prepare",
        "config",
    }
)
ADMIN = "admin"
# Letters and digits that are not mistaken for one another when typed from a terminal.
ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"
GROUPS, GROUP_LENGTH = 4, 5  # 31**20 passwords: 99 bits
_NEW_KEY = "the next start makes a new one and all users log in again"
_KINDS = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}


def make_directory(path: Path) -> Path:
    """Return `path`, made as a directory that only its owner may enter."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def key_for(command: str, data_directory: Path) -> str:
    """Return the secret key for a command of manage.py ("" for another program). A command that may create no
    key gets one that lasts as long as the process."""
    if os.path.lexists(data_directory) and not os.path.isdir(data_directory):
        raise SystemExit(f"the data directory {data_directory} cannot be used: it is no directory")
    if command in MAKE_NO_KEY and not os.path.lexists(data_directory / KEY_FILE):
        return secrets.token_urlsafe(SECRET_BYTES)
    try:
        return secret_key(data_directory)
    except OSError as error:
        raise SystemExit(
            f"the data directory {data_directory} cannot be used: {error.strerror} ({error.filename})"
        ) from None


def secret_key(data_directory: Path) -> str:
    """Return the key in `secret_key` (mode 0600), created when there is none.

    Two commands may start at the same moment: each writes a key to a file of its own and links it into place,
    which only one of them can do; both then read the same.
    """
    path = data_directory / KEY_FILE
    if not os.path.lexists(path):
        make_directory(data_directory)
        # Mkstemp makes it 0600
        descriptor, name = tempfile.mkstemp(prefix=".secret_key-", dir=data_directory)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(SECRET_BYTES))
            file.flush()
            os.fsync(descriptor)
        try:
            os.link(name, path)
        except FileExistsError:
            pass
        finally:
            os.unlink(name)
    key = _read_key(path).strip()
    if len(key) < 50:
        raise SystemExit(f"{path} holds no key of at least 50 characters; remove it, {_NEW_KEY}")
    return key


def _read_key(path: Path) -> str:
    """Return the text of the key's file, which may be a link to a file. Raises SystemExit with a sentence
    when it cannot be read."""
    if wrong := wrong_kind(path):
        raise SystemExit(f"{path} {wrong}: move it away, {_NEW_KEY}")
    try:
        # O_NONBLOCK: at a FIFO that took its place after the check, an open without it would wait for a
        # writer.
        with open(path, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            return file.read()
    except UnicodeDecodeError:
        return ""  # a key is text
    except OSError as error:
        raise SystemExit(
            f"{path} cannot be read ({error.strerror}): let the user that runs the broker read it, "
            f"or move it away, {_NEW_KEY}"
        ) from None


def wrong_kind(path: Path) -> str:
    """Return a sentence when `path` is no regular file and leads to none; "" for a file, for nothing, and
    where its kind cannot be read."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return "is a link that leads nowhere" if os.path.lexists(path) else ""
    except OSError:
        return ""
    return "" if stat.S_ISREG(mode) else f"is {_KINDS.get(stat.S_IFMT(mode), 'a device')}, no regular file"


def one_time_password() -> str:
    """Return a password for one login, easy to read and type."""
    return "-".join("".join(secrets.choice(ALPHABET) for _ in range(GROUP_LENGTH)) for _ in range(GROUPS))


def ensure_admin() -> str | None:
    """Return the one-time password to print, None when an administrator has set one.

    Needs the tables. An administrator that `createsuperuser` made counts, too.
    """
    from django.contrib.auth import get_user_model
    from django.db import transaction

    from mqadmin.models import FirstLogin

    User = get_user_model()
    with transaction.atomic():
        waiting = FirstLogin.objects.select_related("user").filter(user__username=ADMIN).first()
        if waiting is None and User.objects.filter(is_superuser=True, is_active=True).exists():
            return None
        user = waiting.user if waiting else User(username=ADMIN, is_staff=True, is_superuser=True)
        password = one_time_password()
        user.set_password(password)
        user.save()
        FirstLogin.objects.update_or_create(user=user, defaults={"used_at": None})
    return password
