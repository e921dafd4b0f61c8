"""Large answers of REST and pages leave the loop to the sends: no turn of it takes long, whatever a producer
wrote."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from http.client import HTTPResponse
from types import SimpleNamespace

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.test import Client

from broker_store.broker.topics import TopicConfig
from broker_store.config.broker import BrokerSettings
from broker_store.config.store import StoreSettings
from broker_store.engine.store import MessageStore, wall_clock_ms
from broker_store.rest.new_messages import NewMessage
from broker_store.server.broker import Broker
from broker_store.server.parts import build_parts
from mqadmin.cluster.current import install_cluster
from mqadmin.cluster.embedded.cluster import EmbeddedCluster
from mqadmin.web import server
from tests.support.loop_turns import Longest, in_short_turns

MAX_TURN_READINGS = 1.0  # of processor time, in readings of 1 MiB of plain JSON
LARGE_BODY_BYTES = 4_000_000
HOT = "/api/v1/topics/orders/queues/0/messages?limit=100"


@pytest.fixture
async def served(tmp_path, transactional_db):
    """A dashboard at its doors over a real store."""
    loop = asyncio.get_running_loop()
    store_settings = StoreSettings(
        store_path_root_dir=tmp_path / "store",
        mapped_file_size_commit_log=32 << 20,
        mapped_file_size_consume_queue=20 * 500,
        max_hash_slot_num=500,
        max_index_num=20_000,
    )
    store = MessageStore(store_settings, wake=loop.call_soon_threadsafe)
    await asyncio.to_thread(store.open)
    parts = build_parts(
        BrokerSettings(listen_port=0, broker_ip1="127.0.0.1"), store_settings, store, wall_clock_ms
    )
    store.appender.store_host = parts.endpoint.store_host
    broker = Broker(parts)
    broker.load()
    store.start()
    await broker.start("127.0.0.1", fast_port=False)
    parts.topics.put(TopicConfig("orders", 1, 1))
    cluster = EmbeddedCluster(SimpleNamespace(store=store, parts=parts), loop)
    install_cluster(cluster)
    path = tmp_path / "web.sock"
    dashboard = await server.serve(loop, "127.0.0.1", 0, path)
    yield SimpleNamespace(cluster=cluster, path=str(path))
    await dashboard.stop()
    install_cluster(None)
    await broker.stop()
    await asyncio.to_thread(store.close)


def is_short(longest: Longest) -> bool:
    return longest.ms < MAX_TURN_READINGS * longest.reading_ms


def fetch(path: str, address: str, cookie: str = "") -> tuple[int, bytes]:
    """Status and body of a GET over the local socket. For a thread."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(
            f"GET {address} HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\nConnection: "
            f"close\r\n\r\n".encode()
        )
        answer = HTTPResponse(connection)
        answer.begin()
        return answer.status, answer.read()


def session_of(user_of_role) -> str:
    client = Client()
    client.force_login(user_of_role("viewer"))
    return f"{settings.SESSION_COOKIE_NAME}={client.cookies[settings.SESSION_COOKIE_NAME].value}"


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", ["control characters", "no text", "two-byte characters"])
async def test_no_turn_of_the_loop_is_long_while_the_largest_answers_of_rest_are_given(
    served, monkeypatch, kind
):
    """An answer of 42 MB took one turn of 90 ms: it was one string, and was copied three times."""
    one = {"control characters": b"\x01", "no text": b"\xff", "two-byte characters": "ü".encode()}[kind]
    bodies = [one * (size // len(one)) for size in (1_000_000, 1_000_000, 1_000_000, LARGE_BODY_BYTES)]
    for body in bodies:
        await served.cluster.sends.send_batch("orders", [NewMessage(body, "", ("k",))])
    for address in (HOT, "/api/v1/messages?topic=orders&key=k", "/api/v1/topics/orders/messages?from_ms=0"):
        # The first request of all makes Django's tables
        await asyncio.to_thread(fetch, served.path, "/api/v1/topics")
        status, body = await in_short_turns(
            monkeypatch, lambda _, address=address: asyncio.to_thread(fetch, served.path, address), is_short
        )
        assert status == 200
        found = [
            message["body"]
            for message in await asyncio.to_thread(lambda text: json.loads(text)["messages"], body)
        ]
        assert len(found) == 4
        assert all(
            given.encode() in (sent, base64.b64encode(sent))
            for given, sent in zip(found, bodies, strict=True)
        ), address


async def test_no_turn_of_the_loop_is_long_while_pages_and_files_of_large_messages_are_given(
    served, monkeypatch, user_of_role
):
    cookie = await sync_to_async(session_of)(user_of_role)
    nested, large = b"[" * 32_000 + b"]" * 32_000, b'{"a":"' + b"\x02" * LARGE_BODY_BYTES
    receipts = await served.cluster.sends.send_batch(
        "orders", [NewMessage(body, "", ("k",)) for body in (nested, large)]
    )
    places = [receipt.log_offset for receipt in receipts]
    addresses = [f"/messages/{place}/" for place in places] + ["/messages/?by=key&topic=orders&key=k"]
    addresses += [f"/messages/{places[1]}/record", f"/api/v1/messages/{receipts[1].offset_message_id}/raw"]
    for address in addresses:
        # The first of its kind compiles its template
        status, _ = await asyncio.to_thread(fetch, served.path, address, cookie)
        assert status == 200, address
        status, body = await in_short_turns(
            monkeypatch,
            lambda _, address=address: asyncio.to_thread(fetch, served.path, address, cookie),
            is_short,
        )
        assert status == 200 and len(body) > 2_000, address
