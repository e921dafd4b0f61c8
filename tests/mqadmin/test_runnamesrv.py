"""The name server alone, as a command."""

from __future__ import annotations

import asyncio
import signal

from broker_store.client import Admin
from broker_store.config.load import load_name_server_settings
from mqadmin.management.commands.runnamesrv import Command


class FirstLine:
    """An output whose first line can be waited for."""

    def __init__(self) -> None:
        self.line: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def write(self, text: str) -> None:
        if not self.line.done():
            self.line.set_result(text.strip())


async def test_a_name_server_alone_answers_and_notes_changes(tmp_path):
    output = FirstLine()
    settings = load_name_server_settings(None, {"listenPort": "0"})
    command = Command(stdout=output)
    running = asyncio.create_task(command._run(settings, {"data": str(tmp_path), "bind": "127.0.0.1"}))
    ready, address = (await asyncio.wait_for(output.line, 10)).split("=")
    assert ready == "READY nameserver"
    async with Admin(address) as admin:
        await admin.put_config("N", "k", "v")
        assert await admin.get_config("N", "k") == "v"
    signal.raise_signal(signal.SIGTERM)
    await asyncio.wait_for(running, 10)
