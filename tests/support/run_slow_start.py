"""A dashboard over a store that is being started one step at a time: for tests that watch recovery in a
browser.

    BROKER_DATA_DIR=... python -m tests.support.run_slow_start

Writes a store and lets it end like a killed process, then starts it when a line comes on the standard input,
and goes into each step of recovery only when another comes. READY and the address go to the standard output,
and `WAITS` with each step's name.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.support.dashboard_settings")


def main() -> None:
    import django

    django.setup()
    from django.contrib.auth import get_user_model
    from django.core.management import call_command

    from broker_store.assembly import BrokerProcess
    from broker_store.config.load import load_settings
    from broker_store.engine.start.start_records import StartRecords
    from broker_store.engine.store import MessageStore
    from mqadmin.cluster.current import install_cluster
    from mqadmin.cluster.embedded.cluster import EmbeddedCluster
    from mqadmin.web import server
    from tests.support.hand_store import HandStore, message, small_settings

    data = Path(os.environ["BROKER_DATA_DIR"])
    root = data / "store"

    begun = 0

    def wait(report) -> None:
        nonlocal begun
        if len(report.steps) > begun:
            begun = len(report.steps)
            print(f"WAITS {report.steps[-1].name}", flush=True)
            sys.stdin.readline()

    call_command("migrate", verbosity=0)
    get_user_model().objects.create_superuser("admin", password="admin-password")
    store = HandStore(small_settings(root)).begin()
    for number in range(200):
        store.appender.put(message("orders", number % 3, b"x" * 300, keys=(f"k{number}",)))
    store.die()
    settings = load_settings(overrides={"storePathRootDir": str(root)})
    settings = replace(
        settings,
        store=small_settings(root),
        broker=replace(settings.broker, listen_port=0, grpc_server_port=0),
    )

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        process = BrokerProcess(settings, data=data, with_name_server=False)
        process.store = MessageStore(
            settings.store, wake=process._wake, records=StartRecords(data / "recoveries", root)
        )
        install_cluster(EmbeddedCluster(process, loop))
        listening = await server.serve(loop, "127.0.0.1", 0)
        print(f"READY http://127.0.0.1:{listening.port}", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        process._loop = loop
        await process._in_thread(lambda: process.store.open(wait))
        print("DONE", flush=True)
        await listening.ended
        await process.stop()

    asyncio.run(serve())


if __name__ == "__main__":
    main()
