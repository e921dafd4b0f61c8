"""A broker's handlers over a store in memory, without sockets: requests in, decoded answers out."""

from __future__ import annotations

import asyncio

from broker_store.access.refusals import AccessRefusals
from broker_store.config.broker import BrokerSettings
from broker_store.config.store import StoreSettings
from broker_store.nameserver.handlers import NameServer
from broker_store.protocol.command import Command
from broker_store.protocol.connection import Connection
from broker_store.protocol.framing import encode_frame
from broker_store.protocol.headers import SendHeader, write_send
from broker_store.server.addresses import packed_address
from broker_store.server.parts import build_parts
from broker_store.server.router import Router
from tests.support.memory_store import MemoryStore

CLIENT_HOST = (b"\x7f\x00\x00\x01", 50_000)


def refusal_counts(refusals: AccessRefusals) -> dict[tuple[str, str | None], int]:
    """The number of refusals of access control by cause and user."""
    return {(row.cause, row.user): row.count for row in refusals.rows()}


class FakeChannel:
    """What handlers need of a connection; what is written is decoded into `answers`."""

    def __init__(self, port: int = 50_000, address: str = "127.0.0.1"):
        self.loop = asyncio.get_running_loop()
        self.came_s = self.loop.time()
        self.remote = f"{address}:{port}"
        self.remote_host = (packed_address(address), port)
        self.listener = None
        self.closed = self.paused = False
        self.held = self.unsent = 0
        self.answers: list[Command] = []
        self.asked: list[Command] = []
        self.reply = None
        self._connection = Connection()
        self._resumed = []

    def write(self, command: Command) -> None:
        self.write_bytes(encode_frame(command))

    def write_bytes(self, *pieces: bytes) -> None:
        self.answers += self._connection.receive(b"".join(pieces))

    def write_all(self, commands) -> None:
        self.write_bytes(*map(encode_frame, commands))

    def hold(self) -> None:
        self.held += 1

    def release(self) -> None:
        self.held -= 1

    def when_resumed(self, callback) -> None:
        self._resumed.append(callback)

    def resume(self) -> None:
        self.paused = False
        callbacks, self._resumed = self._resumed, []
        for callback in callbacks:
            callback()

    async def request(self, command: Command, timeout: float) -> Command:
        self.asked.append(command)
        return self.reply(command)

    def close(self) -> None:
        self.closed = True


class Harness:
    """A router with its parts; the clock stands still until a test moves `now_ms`."""

    def __init__(
        self,
        *,
        sync_flush: bool = False,
        store_settings: dict | None = None,
        nameserver: NameServer | None = None,
        given: dict | None = None,
        **settings,
    ):
        """`given` goes to build_parts."""
        self.now_ms = 1_700_000_000_000
        self.store = MemoryStore(lambda: self.now_ms, sync_flush=sync_flush)
        broker, store = BrokerSettings(**settings), StoreSettings(**(store_settings or {}))
        self.now_s = 1_000.0
        self.parts = build_parts(
            broker,
            store,
            self.store,
            lambda: self.now_ms,
            nameserver,
            seconds=lambda: self.now_s,
            **(given or {}),
        )
        self.router = Router(self.parts)
        self.router.consume.start()
        self.router.consume._timer.cancel()
        self.channel = FakeChannel()
        self._opaque = 0

    def request(
        self,
        code: int,
        body: bytes = b"",
        *,
        oneway: bool = False,
        serialization: int = 0,
        channel=None,
        **fields,
    ) -> Command:
        """Hand a request in; what is answered at once is on the channel's answers like the rest."""
        self._opaque += 1
        texts = {
            name: value
            if isinstance(value, str)
            else str(value).lower()
            if isinstance(value, bool)
            else str(value)
            for name, value in fields.items()
        }
        command = Command.request(
            code,
            texts or None,
            body,
            opaque=self._opaque,
            oneway=oneway,
            language="JAVA",
            serialization=serialization,
        )
        channel = channel or self.channel
        answer = self.router.handle(command, channel)
        if answer is not None and not oneway:
            channel.write(answer)
        return command

    async def ask(self, code: int, body: bytes = b"", *, channel=None, **options) -> Command:
        """The answer to a request, which must come within a few turns of the loop."""
        channel = channel or self.channel
        command = self.request(code, body, channel=channel, **options)
        for turn in range(200):
            for answer in channel.answers:
                if answer.opaque == command.opaque and answer.is_response:
                    channel.answers.remove(answer)
                    return answer
            await asyncio.sleep(0 if turn < 20 else 0.01)  # what is read in a thread takes longer than a turn
        raise AssertionError(f"no answer to {command}")

    async def send(
        self,
        topic: str = "Orders",
        queue_id: int = 0,
        body: bytes = b"hello",
        properties: str = "UNIQ_KEY\x01U1\x02",
        *,
        code: int = 310,
        # fmt: skip
        serialization: int = 0,
        channel=None,
        oneway: bool = False,
        **header,
    ) -> Command:
        values = dict(
            producer_group="PG", topic=topic, default_topic="TBW102", default_topic_queue_nums=4, queue_id=queue_id, sys_flag=0, born_timestamp=5, flag=0,
            properties=properties, reconsume_times=0, unit_mode=False, max_reconsume_times=None, batch=False,
        )  # fmt: skip
        fields = write_send(SendHeader(**(values | header)), code)
        if oneway:
            self.request(code, body, oneway=True, channel=channel, **fields)
            return None
        return await self.ask(code, body, serialization=serialization, channel=channel, **fields)

    def pull_fields(
        self,
        topic="Orders",
        queue_id=0,
        offset=0,
        *,
        group="CG",
        flag=4,
        tags="*",
        suspend_ms=15_000,
        count=32,
        commit=0,
        **more,
    ) -> dict:
        fields = dict(
            consumerGroup=group, topic=topic, queueId=queue_id, queueOffset=offset, maxMsgNums=count, sysFlag=flag, commitOffset=commit,
            suspendTimeoutMillis=suspend_ms, subVersion=0,
        )  # fmt: skip
        if flag & 4:
            fields |= {"subscription": tags, "expressionType": "TAG"}
        return fields | more

    async def pull(self, *place, **options) -> Command:
        return await self.ask(11, **self.pull_fields(*place, **options))

    def park(self, *place, channel=None, **options) -> Command:
        """A pull that may wait; its answer, when it comes, is on the channel."""
        return self.request(
            11, channel=channel, **self.pull_fields(*place, flag=options.pop("flag", 4) | 2, **options)
        )


async def turns(count: int = 5) -> None:
    """Let the loop turn a few times."""
    for _ in range(count):
        await asyncio.sleep(0)
