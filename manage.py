#!/usr/bin/env python
"""Every command of the project; `manage.py help` lists them, `manage.py runbroker` starts the broker."""

import os
import sys


def prepare_broker() -> None:
    """Check the settings and take the store's lock before anything heavy is imported."""
    from broker_store import launch
    from broker_store.errors import BrokerStoreError
    from broker_store.gc_policy import collect_seldom

    collect_seldom()
    try:
        launch.prepare(sys.argv[2:])
    except BrokerStoreError as error:
        sys.exit(f"runbroker: {error}")


def main() -> None:
    # Whichever command comes first makes the database and the key, in a directory that others may enter
    os.umask(0o077)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mqadmin.settings")
    # The settings lie in the data directory, so the option that names it is needed before they are read.
    for option, following in zip(sys.argv[1:], [*sys.argv[2:], ""], strict=False):
        if option == "--data" and following:
            os.environ["BROKER_DATA_DIR"] = following
        elif option.startswith("--data="):
            os.environ["BROKER_DATA_DIR"] = option.removeprefix("--data=")
    if sys.argv[1:2] == ["runbroker"]:
        prepare_broker()
    try:
        from django.core.management import execute_from_command_line
    except ImportError as error:
        sys.exit(
            f"Django cannot be imported ({error}): `make run` installs what is needed into .venv; "
            f"use .venv/bin/python manage.py ..."
        )
    try:
        execute_from_command_line(sys.argv)
    except Exception as error:
        # of Django's own commands and those of its applications; ours say it themselves
        from mqadmin.management.plain import failure_of

        if "--traceback" in sys.argv or (sentence := failure_of(error)) is None:
            raise
        sys.exit(sentence)


if __name__ == "__main__":
    main()
