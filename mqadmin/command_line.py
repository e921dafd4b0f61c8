"""The command line: `manage.py NAME ..` of a checkout, `headpond NAME ..` of an installed copy.

It imports nothing heavy, and no module that reads Django's settings: `runbroker` checks its own and takes the
store's lock first.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from mqadmin.process.program_name import PROGRAM, program, with_program

# Commands of Django for users and the dashboard's database, which have no option --data
_OF_DJANGO = {
    "changepassword",
    "createsuperuser",
    "migrate",
    "showmigrations",
    "flush",
    "dumpdata",
    "loaddata",
}


def default_data_directory() -> Path:
    """Return the data directory of an installed copy: a folder of the user, by the XDG base directories."""
    given = os.environ.get("XDG_DATA_HOME", "")
    # The specification ignores a path that is not absolute
    base = Path(given) if given.startswith("/") else Path.home() / ".local" / "share"
    return base / PROGRAM


def headpond() -> None:
    """Run `headpond`, the script of an installed copy."""
    if find_spec("django") is None:
        sys.exit("headpond: the broker needs more packages than its client: pip install 'headpond[server]'")
    os.environ.setdefault("BROKER_DATA_DIR", str(default_data_directory()))
    main()


def main() -> None:
    """Run the command that the arguments of the process name."""
    # Whichever command comes first makes the database and the key, in a directory that others may enter
    os.umask(0o077)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mqadmin.settings")
    # The settings lie in the data directory, so the option that names it is needed before they are read.
    arguments, of_data = sys.argv, set[int]()
    for at, (option, following) in enumerate(zip(arguments[1:], [*arguments[2:], ""], strict=False), 1):
        if option == "--data" and following:
            os.environ["BROKER_DATA_DIR"] = following
            of_data |= {at, at + 1}
        elif option.startswith("--data="):
            os.environ["BROKER_DATA_DIR"] = option.removeprefix("--data=")
            of_data.add(at)
    if set(arguments[1:2]) & _OF_DJANGO:
        arguments = [argument for at, argument in enumerate(arguments) if at not in of_data]
        import getpass
        import warnings

        # That a password comes from a pipe is no news
        warnings.filterwarnings("ignore", category=getpass.GetPassWarning)
    if sys.argv[1:2] == ["runbroker"]:
        _prepare_broker()
    try:
        from django.core.management import execute_from_command_line
    except ImportError as error:
        sys.exit(
            f"Django cannot be imported ({error}): `make run` installs what is needed into .venv; "
            f"use .venv/bin/python manage.py ..."
        )
    try:
        execute_from_command_line(arguments)
    except Exception as error:
        # of Django's own commands and those of its applications; ours say it themselves
        from mqadmin.management.plain import failure_of

        if "--traceback" in sys.argv or (sentence := failure_of(error)) is None:
            raise
        # A question has no end of line
        sys.exit(("\n" if isinstance(error, EOFError) else "") + with_program(sentence))


def _prepare_broker() -> None:
    """Check the settings and take the store's lock before anything heavy is imported."""
    from broker_store import launch
    from broker_store.errors import BrokerStoreError
    from broker_store.gc_policy import collect_seldom

    collect_seldom()
    try:
        launch.prepare(sys.argv[2:])
    except BrokerStoreError as error:
        print(f"runbroker: {with_program(str(error))}", file=sys.stderr)
        sys.exit(launch.exit_code_of(error))
    if program() == PROGRAM:
        _compile_kernels()


def _compile_kernels() -> None:
    """Compile the kernels at the first start of an installed copy, by several processes. Without it a start
    would compile them one after the other, and say nothing."""
    from broker_store import kernels

    if not kernels.are_compiled():
        print("Compiling the kernels, once, which can take some minutes", flush=True)
        subprocess.run([sys.executable, "-m", kernels.__name__], check=True)
