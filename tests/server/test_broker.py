"""server.broker, config_writer and registration: the life of a broker over loopback."""

import asyncio
import contextlib
import dataclasses
import json
import os
import threading
from types import SimpleNamespace

import pytest

from broker_store import throttle
from broker_store.assembly import BrokerProcess
from broker_store.broker import offsets
from broker_store.broker.step_pacing import PAUSE_MS
from broker_store.broker.topics import TopicConfig
from broker_store.config.broker import BrokerSettings
from broker_store.config.load import load_settings
from broker_store.config.name_server import NameServerSettings
from broker_store.config.store import StoreSettings
from broker_store.errors import DamagedStoreError, DiskFullError, StoreError
from broker_store.facts import threads
from broker_store.formats import record
from broker_store.messages import Message
from broker_store.nameserver.handlers import NameServer
from broker_store.protocol import client_bodies, registration_body, route_bodies
from broker_store.protocol.command import Command
from broker_store.protocol.headers import SendHeader, write_send
from broker_store.server import broker_ports, config_writer, registration
from broker_store.server.broker import FLAG_LOG_MS, Broker
from broker_store.server.channel import connect
from broker_store.server.listener import bind
from broker_store.server.nameserver_port import NameServerPort
from broker_store.server.parts import build_parts
from broker_store.server.repeated_work import STEP_RETRY_S
from tests.support.memory_store import MemoryStore
from tests.support.waits import until


def clock() -> int:
    return 1_700_000_000_000


@pytest.fixture
async def brokers():
    """Return a function that builds, loads and starts a broker on a free port; all are stopped at the end."""
    started = []

    async def start(store=None, nameserver=None, now_ms=clock, **settings):
        store = store or MemoryStore(clock)
        settings = BrokerSettings(**({"listen_port": 0} | settings))
        broker = Broker(build_parts(settings, StoreSettings(), store, now_ms, nameserver))
        broker.load()
        started.append(broker)
        await broker.start("127.0.0.1", fast_port=False)
        return broker

    yield start
    for broker in reversed(started):
        await broker.stop()


async def dial(broker):
    return await connect("127.0.0.1", broker.listeners[0].port, 5)


def send(topic="Orders", body=b"x", properties="UNIQ_KEY\x01U\x02"):
    header = SendHeader("PG", topic, "TBW102", 4, 0, 0, 1, 0, properties, 0, False, None, False)
    return Command.request(310, write_send(header, 310), body)


def pull(topic="Orders", offset=0, flag=6, suspend_ms=60_000):
    fields = dict(consumerGroup="CG", topic=topic, queueId=0, queueOffset=offset, maxMsgNums=32, sysFlag=flag, commitOffset=0, subVersion=0, subscription="*",
                  suspendTimeoutMillis=suspend_ms)  # fmt: skip
    return Command.request(11, {name: str(value) for name, value in fields.items()})


@pytest.mark.parametrize(("wanted", "attempts"), [(0, 3), (10_911, 1)])
def test_a_port_of_the_system_is_chosen_again_if_the_one_below_is_taken(monkeypatch, wanted, attempts):
    chosen = []

    def taken_twice(host, port, option):
        if "below" in option:
            chosen.append(port)
            if len(chosen) < 3:
                raise OSError("taken")
        return SimpleNamespace(getsockname=lambda: (host, port or 40_000 + len(chosen)), close=lambda: None)

    monkeypatch.setattr(broker_ports, "bind_for", taken_twice)
    if wanted:
        with pytest.raises(OSError, match="taken"):
            broker_ports.bind_broker_ports("127.0.0.1", wanted, with_fast_port=True)
    else:
        assert len(broker_ports.bind_broker_ports("127.0.0.1", wanted, with_fast_port=True)) == 2
    assert len(chosen) == attempts


async def test_a_message_goes_the_whole_way(brokers):
    broker = await brokers()
    producer, consumer = await dial(broker), await dial(broker)
    assert (await producer.request(send(body=b"one"), 5)).code == 0
    answer = await consumer.request(pull(), 5)
    assert [stored.body for stored in record.decode_all(answer.body)] == [b"one"]
    waiting = asyncio.ensure_future(consumer.request(pull(offset=1), 5))
    await until(lambda: broker.parts.parked.count == 1)
    await producer.request(send(body=b"two"), 5)
    assert record.decode((await waiting).body).body == b"two"


async def test_a_port_counts_whom_it_turns_away_and_asks_how_long_a_request_waited(brokers):
    broker = await brokers(max_connections=1)
    first, second = await dial(broker), await dial(broker)
    await until(lambda: second.closed)
    (refused,) = broker.parts.statistics.refusals.facts()
    assert (refused["cause"], refused["value"], refused["limit"]) == ("too many connections", 1, 1)
    await first.request(send(), 5)
    (channel,) = broker.listeners[0].channels
    assert broker.listeners[0].late(send(), channel, 201, 1).code == 2
    first.close()


async def test_ids_and_addresses_name_the_port_that_was_taken(brokers):
    broker = await brokers()
    port = broker.listeners[0].port
    answer = await (await dial(broker)).request(send(), 5)
    assert (
        answer.fields["msgId"].startswith(f"7F000001{port:08X}")
        and broker.parts.endpoint.address == f"127.0.0.1:{port}"
    )


def port_with_another_two_below() -> int:
    while True:
        with bind("127.0.0.1", 0) as one:
            port = one.getsockname()[1]
            with contextlib.suppress(OSError), bind("127.0.0.1", port - 2):
                return port


async def test_the_second_port_lies_two_below(brokers):
    port = port_with_another_two_below()
    settings = BrokerSettings(listen_port=port)
    broker = Broker(build_parts(settings, StoreSettings(), MemoryStore(clock), clock))
    broker.load()
    await broker.start("127.0.0.1")
    try:
        assert [listener.port for listener in broker.listeners] == [port, port - 2]
    finally:
        await broker.stop()


async def test_at_the_end_those_who_wait_are_answered_and_everything_is_saved(brokers):
    store = MemoryStore(clock)
    broker = await brokers(store)
    channel = await dial(broker)
    await channel.request(send("New"), 5)
    waiting = asyncio.ensure_future(channel.request(pull("New", 1, flag=7), 5))
    await until(lambda: broker.parts.parked.count == 1)
    broker.parts.offsets.commit("CG", "New", 0, 1)
    await broker.stop()
    assert (await waiting).code == 19
    assert set(store.config) == {
        "topics.json",
        "subscriptionGroup.json",
        "consumerOffset.json",
        "delayOffset.json",
        "timermetrics",
    }
    again = await brokers(store)
    assert again.parts.topics.get("New").queues == 4
    assert again.parts.offsets.of_group("CG") == {"New": {0: 1}}
    assert again.parts.groups.get("CG") is not None
    await broker.stop()


async def test_a_topic_that_the_log_has_and_its_file_lost_is_found_again(brokers):
    store = MemoryStore(clock)
    store.appender.put(Message("Lost", 2, b"x"))
    broker = await brokers(store)
    assert broker.parts.topics.get("Lost").queues == 3
    await until(lambda: "Lost" in store.config.get("topics.json", ""))


async def test_a_broken_config_file_stops_the_start(brokers):
    store = MemoryStore(clock)
    store.config["consumerOffset.json"] = "{"
    with pytest.raises(DamagedStoreError, match=r"consumerOffset\.json"):
        await brokers(store)


async def test_positions_beyond_the_end_of_their_queue_are_set_back_and_named(brokers, caplog):
    """As after a power cut that removed messages which were read: the next ones get their offsets, and the
    group would skip them."""
    store = MemoryStore(clock)
    broker = await brokers(store)
    producer = await dial(broker)
    for number in range(3):
        await producer.request(send(body=b"%d" % number), 5)
    await broker.stop()
    store.config["consumerOffset.json"] = json.dumps(
        {
            "offsetTable": {
                "Orders@readers": {"0": 50, "1": 2},
                "Orders@behind": {"0": 1},
                "Gone@readers": {"0": 9},
            }
        }
    )
    again = await brokers(store)
    found = again.parts.offsets
    assert [
        found.query("readers", "Orders", 0),
        found.query("readers", "Orders", 1),
        found.query("behind", "Orders", 0),
    ] == [3, 0, 1]
    assert found.query("readers", "Gone", 0) == 9, "of a topic that is not there nothing is known"
    what = "offsets beyond the end of their queues were lowered to it, so that no later message is skipped: "
    assert store.notes == [
        (
            "consumerOffset.json",
            what
            + "readers was at 50 of Orders/0, which ends at 3; readers was at 2 of Orders/1, which ends at 0",
        )
    ]
    assert store.notes[0][1] in caplog.text


async def test_a_message_that_waits_is_delivered_and_the_position_saved(brokers):
    now = [clock()]
    store = MemoryStore(lambda: now[0])
    broker = await brokers(store, now_ms=lambda: now[0])
    delayed = send(body=b"later")
    delayed.fields["i"] = "DELAY\x011\x02UNIQ_KEY\x01U\x02"
    await (await dial(broker)).request(delayed, 5)
    now[0] += 999
    broker.step()
    assert store.messages("Orders") == []
    now[0] += 1
    broker.step()
    assert [message.body for message in store.messages("Orders")] == [b"later"]
    await broker.stop()
    assert "1:1" in store.config["delayOffset.json"]


async def test_how_many_timer_messages_wait_is_in_apaches_file_when_the_broker_ends(brokers):
    store = MemoryStore(clock)
    store.config["timermetrics"] = '{"timingCount":{"Other":{"count":7,"timeStamp":1}}}'
    broker = await brokers(store)
    timed = send()
    timed.fields["i"] = "TIMER_DELAY_SEC\x0160\x02UNIQ_KEY\x01U\x02"
    await (await dial(broker)).request(timed, 5)
    broker.step()
    await broker.stop()
    assert {
        topic: told["count"]
        for topic, told in json.loads(store.config["timermetrics"])["timingCount"].items()
    } == {"Orders": 1}


async def test_how_many_halves_wait_is_read_at_the_start_and_saved_at_the_end(brokers):
    store = MemoryStore(clock)
    store.config["transactionMetrics"] = (
        '{"dataVersion":{},"transactionCount":{"Orders":{"count":2,"timeStamp":1},"Other":{"count":7,"timeStamp":1}}}'
    )
    broker = await brokers(store)
    half = send()
    half.fields["i"] = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01U\x02"
    await (await dial(broker)).request(half, 5)
    await broker.stop()
    assert {
        topic: told["count"]
        for topic, told in json.loads(store.config["transactionMetrics"])["transactionCount"].items()
    } == {"Orders": 3, "Other": 7}


async def test_silent_clients_are_closed(brokers):
    now = [clock()]
    broker = await brokers(now_ms=lambda: now[0])
    channel = await dial(broker)
    beat = client_bodies.encode_heartbeat(client_bodies.Heartbeat("c", ("PG",), ()))
    await channel.request(Command.request(34, None, beat), 5)
    now[0] += 121_000
    broker._tick()
    await until(lambda: channel.closed)
    assert broker.parts.clients.all() == []


async def test_offsets_are_saved_after_the_clock_was_set_back(brokers):
    """They were not for as long as it was set back, and a kill then repeated the messages of that time."""
    now = [clock()]
    store = MemoryStore(lambda: now[0])
    broker = await brokers(store, now_ms=lambda: now[0])
    now[0] += 10_000
    broker._tick()
    # What is saved now is made in a thread: the commit below must not be in it
    await until(lambda: "consumerOffset.json" in store.config and not broker.parts.offsets.dirty)
    now[0] -= 3_600_000
    broker.parts.offsets.commit("readers", "Orders", 0, 5)
    broker._tick()
    await until(
        lambda: (
            "consumerOffset.json" in store.config
            and offsets.read_file(store.config["consumerOffset.json"])[0] == [("readers", "Orders", 0, 5)]
        )
    )


# Flags of the store


async def test_what_the_store_notes_is_logged_once_and_again_after_a_while(brokers, caplog):
    broker = await brokers()
    lines = lambda: [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]  # noqa: E731
    broker.parts.store.set_flag("no_room", "consumequeue/T: Permission denied")
    broker.parts.store.set_flag("page_cache_busy", "x")
    for at_ms in (0, 1_000, FLAG_LOG_MS - 1):
        broker._log_flags(clock() + at_ms)
    assert lines() == ["the store notes no room: consumequeue/T: Permission denied"]
    broker.parts.store.clear_flag("no_room")
    broker._log_flags(clock() + FLAG_LOG_MS)
    broker.parts.store.set_flag("no_room", "consumequeue/T: Permission denied")
    broker._log_flags(clock() + FLAG_LOG_MS)
    assert len(lines()) == 2


async def test_a_step_that_a_file_of_the_store_fails_is_noted_and_tried_again(brokers, caplog, monkeypatch):
    """Once this only logged a traceback each second; no flag showed that timer messages wait."""
    monkeypatch.setattr("broker_store.server.repeated_work.STEP_RETRY_S", 0.01)
    broker = await brokers()
    failing, taken = [StoreError("timerlog/0: No such file or directory")] * 3, []

    def step(now_ms):
        taken.append(now_ms)
        if failing:
            raise failing.pop()
        return now_ms + 1

    monkeypatch.setattr(broker.parts.timer, "step", step)
    broker._timer_steps._soon()
    await until(lambda: broker.parts.store.flags)
    assert list(broker.parts.store.flags) == ["timer_failed"]
    assert (
        broker.parts.store.flags["timer_failed"].startswith("timer messages wait;")
        and "timerlog/0" in broker.parts.store.flags["timer_failed"]
    )
    await until(lambda: not broker.parts.store.flags)
    assert len(taken) > 3 and not [one for one in caplog.records if one.exc_info]


async def test_a_step_that_fails_is_not_tried_at_each_arrival(brokers, monkeypatch):
    broker = await brokers()
    taken = []

    def step(now_ms):
        taken.append(now_ms)
        raise StoreError("timerlog/0: No such file or directory")

    monkeypatch.setattr(broker.parts.timer, "step", step)
    broker._timer_steps._soon()
    await until(lambda: taken)
    for _ in range(20):
        broker._timer_steps._soon()
        await asyncio.sleep(0)
    broker._timer_steps.shortly()
    assert (
        len(taken) == 1 and broker._timer_steps._at_s > asyncio.get_running_loop().time() + STEP_RETRY_S / 2
    )


# Saving


async def test_only_the_newest_picture_is_written_and_one_at_a_time():
    written = []
    one = config_writer.ConfigWriter(lambda name, data: written.append((name, data)))
    for number in range(5):
        one.save("a.json", lambda number=number: str(number).encode())
    one.save("b.json", lambda: b"b")
    await one.close()
    assert sorted(written) == [("a.json", b"4"), ("b.json", b"b")]


async def test_a_full_disk_is_tried_again(monkeypatch):
    monkeypatch.setattr(config_writer, "RETRY_S", 0.0)
    written, full = [], [True]

    def write(name, data):
        if full.pop() if full else False:
            raise DiskFullError("no room")
        written.append(data)

    one = config_writer.ConfigWriter(write)
    one.save("a.json", lambda: b"a")
    await one.close()
    assert written == [b"a"] and one.failed == {}


async def test_a_file_is_under_way_until_it_is_written():
    """Once a long first write was reported as a file that was removed."""
    begun, goes_on = threading.Event(), threading.Event()
    one = config_writer.ConfigWriter(lambda name, data: (begun.set(), goes_on.wait(30)))
    assert not one.is_under_way("a.json")
    one.save("a.json", lambda: b"a")
    one.save("b.json", lambda: b"b")
    assert one.is_under_way("a.json") and one.is_under_way("b.json")
    await asyncio.to_thread(begun.wait, 30)
    assert one.is_under_way("a.json") and one.is_under_way("b.json")
    goes_on.set()
    await one.close(30)
    assert not one.is_under_way("a.json") and not one.is_under_way("b.json")


async def test_a_large_table_is_written_slowly_and_at_the_end_at_full_speed(monkeypatch):
    rests, begun, goes_on = [], threading.Event(), threading.Event()

    class CountedThrottle(throttle.Throttle):
        def pause(self):
            rests.append(self._is_stopped)

    monkeypatch.setattr(config_writer, "Throttle", CountedThrottle)

    def text() -> bytes:
        parts = []
        for number in throttle.in_pieces(range(4), 2):
            parts.append(b"%d" % number)
            if number == 2:
                begun.set()
                goes_on.wait(30)
        return b"".join(parts)

    written = []
    one = config_writer.ConfigWriter(lambda name, data: written.append(data))
    one.save("a.json", text)
    await asyncio.to_thread(begun.wait, 30)
    closing = asyncio.create_task(one.close(30))
    await asyncio.sleep(0)
    goes_on.set()
    await closing
    assert written == [b"0123"]
    assert rests == [False, True], "it hurries from the close on"


async def test_what_is_not_written_at_the_end_is_named(caplog):
    goes_on = threading.Event()
    one = config_writer.ConfigWriter(lambda name, data: goes_on.wait(30))
    one.save("a.json", lambda: b"a")
    one.save("b.json", lambda: b"b")
    try:
        await asyncio.sleep(0)
        await one.close(0.0)
    finally:
        goes_on.set()
    assert "config files not written at the end: a.json, b.json" in caplog.text


# Name servers


@pytest.fixture
async def nameserver():
    port = NameServerPort(NameServer(clock), clock)
    await port.start("127.0.0.1", 0)
    yield SimpleNamespace(tables=port.nameserver, address=f"127.0.0.1:{port.listener.port}", port=port)
    await port.stop()


def route_of(tables, topic):
    answer = tables.handle(Command.request(105, {"topic": topic}, version=479), None)
    return route_bodies.decode_route(answer.body) if answer.code == 0 else None


@pytest.mark.parametrize(
    "make",
    [lambda path: path.write_bytes(b""), os.mkfifo, lambda path: path.symlink_to("nowhere")],
    ids=["file", "FIFO", "link"],
)
async def test_a_record_of_the_start_that_is_not_kept_is_a_warning(tmp_path, caplog, make):
    """Once the start was READY, and its findings were in no record and no log."""
    make(tmp_path / "recoveries")
    settings = load_settings(
        None,
        {
            "mappedFileSizeCommitLog": "65536",
            "maxHashSlotNum": "50",
            "maxIndexNum": "200",
            "listenPort": "0",
            "grpcServerPort": "0",
        },
        store_root=tmp_path / "store",
    )
    process = BrokerProcess(settings, data=tmp_path, with_name_server=False)
    (tmp_path / "run").mkdir()
    await process.start()
    await process.stop()
    (warning,) = [record for record in caplog.records if "record of this start" in record.getMessage()]
    assert (
        warning.levelname == "WARNING"
        and f"{tmp_path / 'recoveries'}: is " in warning.getMessage()
        and "ove it out" in warning.getMessage()
    )


async def test_threads_are_no_longer_measured_after_a_stop_whose_store_does_not_close(tmp_path, monkeypatch):
    settings = load_settings(
        None,
        {
            "mappedFileSizeCommitLog": "65536",
            "maxHashSlotNum": "50",
            "maxIndexNum": "200",
            "listenPort": "0",
            "grpcServerPort": "0",
        },
        store_root=tmp_path / "store",
    )
    process = BrokerProcess(settings, with_name_server=False)
    await process.start()
    close = process.store.close

    def fails() -> None:
        close()
        raise StoreError("the disk failed")

    monkeypatch.setattr(process.store, "close", fails)
    with pytest.raises(StoreError):
        await process.stop()
    assert threads.of_process() is None
    assert "thread-watch" not in {thread.name for thread in threading.enumerate()}


async def test_what_the_name_server_in_the_process_refuses_is_counted_with_the_brokers_own(tmp_path):
    settings = load_settings(
        None,
        {
            "mappedFileSizeCommitLog": "65536",
            "maxHashSlotNum": "50",
            "maxIndexNum": "200",
            "listenPort": "0",
            "grpcServerPort": "0",
        },
        store_root=tmp_path / "store",
    )
    process = BrokerProcess(
        dataclasses.replace(settings, name_server=dataclasses.replace(settings.name_server, listen_port=0))
    )
    await process.start()
    try:
        port = process.name_server_port.listener.port
        channel = await connect("127.0.0.1", port, 5)
        shown = await channel.request(Command.request(319), 5)
        assert (
            b"deleteTopicWithBrokerRegistration=false\n" in shown.body
            and f"listenPort={port}\n".encode() in shown.body
        )
        assert shown.body.count(b"\n") == len(dataclasses.fields(NameServerSettings))
        assert (await channel.request(Command.request(105, {}), 5)).code == 1
        process.name_server_port.listener.max_connections = 1
        turned_away = await connect("127.0.0.1", process.name_server_port.listener.port, 5)
        await until(lambda: turned_away.closed)
        refused = {facts["cause"]: facts for facts in process.parts.statistics.refusals.facts()}
        assert refused.keys() == {"name server: wrong field", "name server: too many connections"}
        assert "topic" in refused["name server: wrong field"]["said"] and refused["name server: wrong field"][
            "who"
        ].startswith("127.0.0.1:")
        assert (
            refused["name server: too many connections"]["value"],
            refused["name server: too many connections"]["limit"],
        ) == (1, 1)
        channel.abort()
    finally:
        await process.stop()


async def test_the_name_server_in_the_process_knows_each_topic_at_once(brokers):
    tables = NameServer(clock)
    broker = await brokers(nameserver=tables)
    assert route_of(tables, "TBW102").queues[0].perm == 7
    broker.parts.topics.put(TopicConfig("Orders", 3, 2))
    route = route_of(tables, "Orders")
    assert (route.queues[0].read_queue_nums, route.queues[0].write_queue_nums) == (3, 2)
    assert route.brokers[0].addresses == {0: broker.parts.endpoint.address}
    broker.registration.delete_topic("Orders")
    assert route_of(tables, "Orders") is None
    await broker.stop()
    assert route_of(tables, "TBW102") is None


async def test_a_name_server_elsewhere_is_told_over_the_wire(brokers, nameserver):
    broker = await brokers(namesrv_addr=nameserver.address)
    await until(lambda: route_of(nameserver.tables, "TBW102"))
    broker.parts.topics.put(TopicConfig("Orders", 3, 2))
    await until(lambda: route_of(nameserver.tables, "Orders"))
    assert broker.registration.peers[0].error is None
    await broker.stop()
    assert route_of(nameserver.tables, "TBW102") is None


async def test_another_process_cannot_take_the_name_of_the_broker_beside_its_name_server(brokers, nameserver):
    broker = await brokers(nameserver=nameserver.tables, namesrv_addr=nameserver.address)
    # Over its own TCP connection the broker may register too.
    await until(lambda: broker.registration.peers[0].error is None)
    host, port = nameserver.address.split(":")
    false = await connect(host, int(port), 5)
    claim = broker.registration.command(
        103,
        registration_body.encode_registration(broker.registration.served(broker.parts.topics.all())),
    )
    claim.fields["brokerAddr"] = "10.9.9.9:10911"
    answer = await false.request(claim, 5)
    assert answer.code == 1 and "brokerName" in answer.remark
    claim.fields["brokerName"] = "broker-b"
    assert (await false.request(claim, 5)).code == 0
    addresses = {one.broker_name: one.addresses for one in route_of(nameserver.tables, "TBW102").brokers}
    assert addresses == {"broker-a": {0: broker.parts.endpoint.address}, "broker-b": {0: "10.9.9.9:10911"}}
    false.close()
    await broker.stop()


async def test_a_name_server_that_comes_later_is_found(brokers, monkeypatch):
    monkeypatch.setattr(registration, "RETRY_S", 0.01)
    with bind("127.0.0.1", 0) as taken:
        number = taken.getsockname()[1]
    broker = await brokers(namesrv_addr=f"127.0.0.1:{number}")
    await until(lambda: broker.registration.peers[0].error not in (None, "not registered yet"))
    late = NameServerPort(NameServer(clock), clock)
    await late.start("127.0.0.1", number)
    try:
        await until(lambda: route_of(late.nameserver, "TBW102"))
        await broker.stop()
    finally:
        await late.stop()


async def test_a_port_that_is_taken_is_told_with_what_to_do(brokers):
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        number = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"^port {number} of 127.0.0.1 is taken: .*--broker-port$"):
            await brokers(listen_port=number)
        with pytest.raises(OSError, match=f"^port {number} of 127.0.0.1 is taken: .*--nameserver-port"):
            await NameServerPort(NameServer(clock), clock).start("127.0.0.1", number)


async def test_the_brokers_permission_masks_its_topics(brokers):
    tables = NameServer(clock)
    await brokers(nameserver=tables, broker_permission=4)
    assert route_of(tables, "TBW102").queues[0].perm == 4


async def test_a_changed_permission_is_registered_at_once(brokers, nameserver):
    tables = NameServer(clock)
    broker = await brokers(nameserver=tables, namesrv_addr=nameserver.address)

    def permissions():
        routes = (route_of(tables, "TBW102"), route_of(nameserver.tables, "TBW102"))
        return [route and route.queues[0].perm for route in routes]

    await until(lambda: permissions() == [7, 7])
    channel = await dial(broker)
    assert (await channel.request(Command.request(25, {}, b"brokerPermission=4\n"), 5)).code == 0
    await until(lambda: permissions() == [4, 4])
    assert (await channel.request(Command.request(25, {}, b"brokerPermission=6\n"), 5)).code == 0
    await until(lambda: permissions() == [7, 7])
    await channel.request(Command.request(25, {}, b"brokerPermission=2\n"), 5)
    await channel.request(Command.request(25, {}, b"brokerPermission=4\n"), 5)
    await until(lambda: permissions() == [4, 4])


async def test_topics_that_the_name_server_orders_are_marked(brokers, nameserver):
    nameserver.tables.handle(
        Command.request(100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "broker-a", "value": "broker-a:1"}),
        None,
    )
    broker = await brokers(namesrv_addr=nameserver.address)
    await until(lambda: broker.parts.topics.get("broker-a").order)


async def test_timer_messages_that_arrive_within_a_moment_are_put_on_the_wheel_together(brokers):
    broker = await brokers()
    timer, loop = broker.parts.timer, asyncio.get_running_loop()
    step, on_arrival, stepped, arrived = timer.step, timer.on_arrival, [], []
    timer.step = lambda now_ms: (stepped.append(loop.time()), step(now_ms))[1]
    timer.on_arrival = lambda: (arrived.append(loop.time()), on_arrival())[1]
    channel = await dial(broker)
    answer = await channel.request(send(properties="UNIQ_KEY\x01U\x02TIMER_DELAY_SEC\x0160\x02"), 5)
    assert answer.code == 0
    async with asyncio.timeout(5):
        while timer.facts().not_enqueued:
            await asyncio.sleep(0.001)
    assert timer.facts().waiting == 1
    assert min(at for at in stepped if at >= arrived[0]) - arrived[0] > 0.9 * PAUSE_MS / 1000
    channel.close()


async def test_config_files_that_were_removed_are_written_by_a_stop(brokers):
    """Once only changed tables were written: topics, groups and offsets were lost with the removed files."""
    store = MemoryStore(clock)
    broker = await brokers(store)
    broker.parts.topics.put(TopicConfig("Orders"))
    broker.parts.groups.find_or_create("readers")
    producer = await dial(broker)
    for number in range(5):
        await producer.request(send(body=b"%d" % number), 5)
    broker.parts.offsets.commit("readers", "Orders", 0, 5)
    await broker.stop()
    again = await brokers(store)
    store.config.clear()
    await again.stop()
    last = Broker(build_parts(BrokerSettings(listen_port=0), StoreSettings(), store, clock, None))
    last.load()
    assert last.parts.topics.get("Orders") is not None
    assert "readers" in {group.name for group in last.parts.groups.all()}
    assert last.parts.offsets.query("readers", "Orders", 0) == 5


async def test_config_files_that_were_removed_are_written_again_while_the_broker_runs(brokers, caplog):
    """Once a broker that was killed then lost topics, groups and offsets, without a log line."""
    store = MemoryStore(clock)
    broker = await brokers(store)
    broker.parts.offsets.commit("readers", "Orders", 0, 5)
    names = {"topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json"}
    # One that is being written is not missing
    await until(
        lambda: names <= store.config.keys() and not any(map(broker.config_writer.is_under_way, names))
    )
    store.config.clear()
    broker._offsets_saved_ms = broker._delay_saved_ms = 0
    broker._tick()
    await until(
        lambda: (
            "consumerOffset.json" in store.config
            and offsets.read_file(store.config["consumerOffset.json"])[0] == [("readers", "Orders", 0, 5)]
        )
    )
    await until(lambda: {"topics.json", "subscriptionGroup.json", "delayOffset.json"} <= store.config.keys())
    assert sorted(
        record.getMessage().split(" ")[0] for record in caplog.records if "was removed" in record.getMessage()
    ) == [
        "config/consumerOffset.json",
        "config/delayOffset.json",
        "config/subscriptionGroup.json",
        "config/topics.json",
    ]
