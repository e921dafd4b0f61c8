"""Serve the dashboard over invented, moving data: to see pages before, or without, a broker.

    BROKER_DATA_DIR=build/fake python -m tests.support.run_fake_dashboard [port] [state] [tls.server.mode]

A state of the broker, or `hostile` for one whose messages and clients try to run in the browser.

Logs in as `viewer` / `viewer-password` or `admin` / `admin-password`; it is for a developer's own machine
only.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.support.dashboard_settings")
os.environ.setdefault("BROKER_DATA_DIR", "build/fake")


def main(port: int, state: str, tls_mode: str) -> None:
    import django

    django.setup()
    from django.contrib.auth import get_user_model
    from django.core.management import call_command

    from broker_store.config.broker import BrokerSettings
    from broker_store.engine.disk.disk import Disk
    from broker_store.server.tls_setup import own_names, what_comes_before
    from mqadmin.cluster.current import install_cluster
    from mqadmin.settings import DATA_DIRECTORY
    from mqadmin.web import server
    from tests.support import fake_runs, left_behind
    from tests.support.fake_cluster import moving
    from tests.support.hostile_cluster import HostileCluster

    call_command("migrate", verbosity=0)
    for name in ("viewer", "admin"):
        user, _ = get_user_model().objects.get_or_create(
            username=name, defaults={"is_superuser": name == "admin", "is_staff": name == "admin"}
        )
        user.set_password(f"{name}-password")
        user.save()
    install_cluster(HostileCluster() if state == "hostile" else moving(state))
    if state != "hostile":
        fake_runs.install()

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        settings = BrokerSettings(tls_server_mode=tls_mode)
        before = what_comes_before(settings, DATA_DIRECTORY / "tls", own_names(()), Disk())
        if before.tls is not None:
            await before.tls.open()
        listening = await server.serve(loop, "127.0.0.1", port, before=before)
        # An end by SIGTERM is an ordinary one: what was unpacked for the pages is in the temporary directory,
        # and goes with it.
        ended = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, ended.set)
        scheme = "https" if tls_mode == "enforcing" else "http"
        print(f"READY {scheme}://127.0.0.1:{listening.port}/", flush=True)
        await ended.wait()
        await listening.stop()
        if before.tls is not None:
            before.tls.close()

    with left_behind.AT_END:
        asyncio.run(serve())


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 8089,
        *[*sys.argv[2:], *["running", "disabled"][len(sys.argv[2:]) :]],
    )
