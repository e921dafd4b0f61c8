"""A connection to a broker for figures: it reads two numbers of each answer, so that the broker sets the
speed."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence

from broker_store.protocol.client_bodies import ConsumerData, Heartbeat, Subscription, encode_heartbeat
from broker_store.protocol.codes import RequestCode
from broker_store.protocol.command import Command
from broker_store.protocol.framing import encode_frame

LIMIT_S = 30
_CODE = re.compile(rb'"code":(\d+)')
_FLAG = re.compile(rb'"flag":(\d+)')


class RawConnection:
    """`client_id` is the member of a group by a heartbeat."""

    def __init__(self, port: int, client_id: str, group: str, subscription: Subscription):
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(LIMIT_S)
        self._file = self._socket.makefile("rb", 1 << 18)
        beat = Heartbeat(client_id, (), (ConsumerData(group, subscriptions=(subscription,)),))
        self.send([Command.request(int(RequestCode.HEART_BEAT), {}, encode_heartbeat(beat))])
        code, _ = self.answer()
        if code:
            raise SystemExit(f"the heartbeat was answered {code}")

    def send(self, commands: Sequence[Command]) -> None:
        """Send requests in one piece."""
        self._socket.sendall(b"".join([encode_frame(command) for command in commands]))

    def answer(self) -> tuple[int, bytes]:
        """Return the code and the header of the next answer. Notices that the group has changed come between
        them."""
        while True:
            length = int.from_bytes(self._file.read(4), "big")
            frame = self._file.read(length)
            header = frame[4 : 4 + int.from_bytes(frame[1:4], "big")]
            code, flag = _CODE.search(header), _FLAG.search(header)
            if code is None or flag is None:
                raise SystemExit(f"a frame without code or flag: {header[:200]!r}")
            if int(flag[1]) & 1:
                return int(code[1]), header
