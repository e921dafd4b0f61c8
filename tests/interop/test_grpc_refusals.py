"""Calls of producers that are refused: our answers and those of Apache's proxy, which tests/golden keeps."""

import asyncio

import pytest

from broker_store.client import Admin
from tests.interop import clients
from tests.interop.brokers import ApacheBroker, OurBroker
from tests.support import grpc_refusals
from tests.support.grpc_refusals import DIFFERENT, READ_ONLY, SETTINGS, TOPICS


def create_topics(broker) -> None:
    async def ask():
        async with Admin(broker.nameserver) as admin:
            for topic, kind in TOPICS.items():
                await admin.create_topic(
                    topic, read_queues=4, write_queues=4, perm=4 if topic == READ_ONLY else 6,
                    attributes={"message.type": kind} if kind else None,
                )  # fmt: skip

    asyncio.run(ask())


@pytest.mark.parametrize("kind", [OurBroker, ApacheBroker])
def test_what_is_refused_is_answered_as_apaches_proxy_did(kind, tmp_path):
    clients.require(clients.JAVA_5)
    broker = kind(tmp_path / "data", SETTINGS, has_grpc=True)
    try:
        create_topics(broker.start())
        found = grpc_refusals.answers_of(f"127.0.0.1:{broker.grpc_port}")
    finally:
        broker.end()
    golden = grpc_refusals.golden()
    if kind is ApacheBroker:
        assert found == golden
    else:
        assert {name: answer for name, answer in found.items() if name not in DIFFERENT} == {
            name: answer for name, answer in golden.items() if name not in DIFFERENT
        }
        assert {name: found[name][0] for name in DIFFERENT} == {
            name: code for name, (code, _) in DIFFERENT.items()
        }
