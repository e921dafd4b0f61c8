"""A websocket's other end, without a server. (`channels.testing` has one too, but importing it needs
daphne.)"""

from __future__ import annotations

import json

from asgiref.testing import ApplicationCommunicator


class WebsocketCommunicator(ApplicationCommunicator):
    """One socket to `application`."""

    def __init__(self, application, path: str, headers: list[tuple[bytes, bytes]]):
        super().__init__(
            application,
            {"type": "websocket", "path": path, "query_string": b"", "headers": headers, "subprotocols": []},
        )

    async def connect(self) -> bool:
        """Whether it was accepted."""
        await self.send_input({"type": "websocket.connect"})
        return (await self.receive_output())["type"] == "websocket.accept"

    async def send(self, frame: dict | str | bytes) -> None:
        if isinstance(frame, bytes):
            await self.send_input({"type": "websocket.receive", "bytes": frame})
        else:
            await self.send_input(
                {"type": "websocket.receive", "text": frame if isinstance(frame, str) else json.dumps(frame)}
            )

    async def frames(self) -> list[dict]:
        output = await self.receive_output()
        assert output["type"] == "websocket.send", output
        return json.loads(output["text"])

    async def closed(self, timeout: float = 3) -> int:
        """The code it was closed with; what was sent before is passed over."""
        output = await self.receive_output(timeout)
        while output["type"] == "websocket.send":
            output = await self.receive_output(timeout)
        assert output["type"] == "websocket.close", output
        await self.send_input({"type": "websocket.disconnect", "code": output.get("code", 1000)})
        await self.wait()
        return output["code"]

    async def close(self) -> None:
        await self.send_input({"type": "websocket.disconnect", "code": 1000})
        await self.wait()
