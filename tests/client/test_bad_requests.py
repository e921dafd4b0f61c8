"""What makes no sense of what a broker asks its clients: one answer each where there is one, and the client
goes on as before."""

import pytest

from broker_store.client import PushConsumer, TransactionProducer
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.command import Command
from tests.client.conftest import Inbox

GOOD_FIELDS = {
    R.CHECK_TRANSACTION_STATE: {"topic": "T", "tranStateTableOffset": "0", "commitLogOffset": "0", "msgId": "x", "transactionId": "x", "offsetMsgId": "x"},
    R.NOTIFY_CONSUMER_IDS_CHANGED: {"consumerGroup": "g"},
    R.RESET_CONSUMER_CLIENT_OFFSET: {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true"},
    R.GET_CONSUMER_STATUS_FROM_CLIENT: {"topic": "T", "group": "g"},
    R.GET_CONSUMER_RUNNING_INFO: {"consumerGroup": "g", "clientId": "c", "jstackEnable": "false"},
    R.CONSUME_MESSAGE_DIRECTLY: {"consumerGroup": "g", "clientId": "c", "brokerName": "broker-a"},
    R.PUSH_REPLY_MESSAGE_TO_CLIENT: {"producerGroup": "pg", "topic": "T", "queueId": "0", "sysFlag": "0", "bornTimestamp": "0", "flag": "0", "bornHost": "127.0.0.1:1", "storeHost": "127.0.0.1:1",
                                     "storeTimestamp": "0", "properties": "CORRELATION_ID\x01none\x02"},
}  # fmt: skip
# Answered by no client
ONEWAY = (R.CHECK_TRANSACTION_STATE, R.NOTIFY_CONSUMER_IDS_CHANGED, R.RESET_CONSUMER_CLIENT_OFFSET)
BAD_VALUES = ("", "x", "-1", "9" * 40, "../x", "\x00", "x" * 60_000, "\u202e")
BAD_BODIES = (b"", b"{", b"[]", b"null", b"7", b"\xff" * 100, b"[" * 5_000, b'{"offsetTable":7}', b'{"offsetTable":{"x":"y"}}', b'{"offsetTable":[{"topic":7}]}', b"\x00" * 200,
              (100).to_bytes(4, "big") + b"\xda\xa3\x20\xa7" + b"\xff" * 92)  # fmt: skip


@pytest.mark.parametrize("code", GOOD_FIELDS, ids=lambda code: code.name)
async def test_each_bad_request_is_answered_and_harms_nothing(cluster, code, caplog):
    inbox, good = Inbox(), GOOD_FIELDS[code]
    bad = [({}, b""), *[(good, body) for body in BAD_BODIES]]
    for name in good:
        bad += [
            ({other: value for other, value in good.items() if other != name}, b""),
            *[(good | {name: value}, b"") for value in BAD_VALUES],
        ]
    async with (
        TransactionProducer(cluster.nameservers, "pg", lambda message: None) as producer,
        PushConsumer("g", cluster.nameservers, consume_from="first") as consumer,
    ):
        await producer.send("T", b"before")
        await consumer.subscribe("T").start(inbox)
        await inbox.next()
        channels = [channel for listener in cluster.broker.listeners for channel in listener.channels]
        assert len(channels) == 2
        for channel in channels:
            for fields, body in bad:
                if code in ONEWAY:
                    channel.write(Command.request(int(code), fields, body, oneway=True))
                else:
                    answer = await channel.request(Command.request(int(code), fields, body), 5)
                    assert "Traceback" not in (answer.remark or "")
            assert (
                await channel.request(Command.request(0), 5)
            ).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "it lives"
        assert not [record for record in caplog.records if record.name == "asyncio"], (
            "nothing was raised that nobody caught"
        )
        await producer.send("T", b"after")
        while (await inbox.next())[0].body != b"after":
            pass
