"""`manage.py prepare`: what a start would else do first, or do without: compiled kernels, compressed static
files."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import CommandError

from mqadmin.management.plain import PlainCommand


class Command(PlainCommand):
    help = "Compiles the kernels and collects the dashboard's static files, so that no start has to."
    requires_system_checks = ()

    def handle(self, *_arguments: Any, **_options: Any) -> None:
        # What is made here lies beside the program and has no secret; the user of a service, who is not the
        # one that installed it, reads it. All other commands make files for their user alone.
        os.umask(0o022)
        self.stdout.write("Compiling the kernels, which can take some minutes")
        self.stdout.flush()
        if subprocess.run([sys.executable, "-m", "broker_store.kernels"]).returncode != 0:
            raise CommandError("the kernels could not be compiled; the cause is above")
        try:
            call_command("collectstatic", verbosity=0, interactive=False)
        except OSError as error:
            raise CommandError(
                f"static files cannot be collected in {settings.STATIC_ROOT} ({error.strerror}): run this as "
                "the user who installed the program. Without it they are served as they are, uncompressed"
            ) from None
        self.stdout.write(f"static files ready ({settings.STATIC_ROOT})")
