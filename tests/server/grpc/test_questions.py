"""What the broker asks clients on their Telemetry, beside the fate of transactions."""

from __future__ import annotations

import asyncio
import json

import pytest

from broker_store.protocol.codes import RequestCode, ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.grpc.v2 import service_pb2 as s
from broker_store.protocol.grpc.v2.definition_pb2 import Code, Status
from broker_store.server.channel import RequestTimeout
from broker_store.server.grpc.settings import MAX_COMMANDS
from tests.server.grpc.conftest import connected


async def consumer(port):
    """A consumer's Telemetry, and the consumer in the broker's tables."""
    call, answer = await connected(port)
    assert answer.status.code == Code.OK
    (found,) = port.parts.clients.consumers("CG")
    return call, found.channel


def ask(client, code: RequestCode, body: bytes = b"", timeout: float = 10, **fields: str):
    return asyncio.ensure_future(client.request(Command.request(int(code), fields, body), timeout))


async def test_the_stacks_of_a_clients_threads_are_fetched(opened):
    port = await opened()
    call, client = await consumer(port)
    asked = ask(client, RequestCode.GET_CONSUMER_RUNNING_INFO, jstackEnable="true")
    question = (await call.read()).print_thread_stack_trace_command
    stacks = s.ThreadStackTrace(nonce=question.nonce, thread_stack_trace="main waits")
    await call.write(s.TelemetryCommand(status=Status(code=Code.OK), thread_stack_trace=stacks))
    answer = await asked
    assert (answer.code, json.loads(answer.body)) == (0, {"jstack": "main waits"})
    call.cancel()


@pytest.mark.parametrize(
    ("code", "result"),
    [
        (Code.OK, "CR_SUCCESS"),
        (Code.FAILED_TO_CONSUME_MESSAGE, "CR_LATER"),
        (Code.MESSAGE_CORRUPTED, "CR_RETURN_NULL"),
    ],
)
async def test_a_client_consumes_a_message_that_an_administrator_names(opened, code, result):
    port = await opened()
    call, client = await consumer(port)
    port.put(b"hello")
    (stored,) = port.harness.store.messages("Orders", 0)
    raw = port.harness.store.reads.records.record_at(stored.log_offset)
    asked = ask(client, RequestCode.CONSUME_MESSAGE_DIRECTLY, raw)
    question = (await call.read()).verify_message_command
    assert (question.message.body, question.message.topic.name) == (b"hello", "Orders")
    verified = s.VerifyMessageResult(nonce=question.nonce)
    await call.write(s.TelemetryCommand(status=Status(code=code), verify_message_result=verified))
    answer = await asked
    assert (answer.code, json.loads(answer.body)["consumeResult"]) == (0, result)
    call.cancel()


async def test_an_answer_that_nobody_waits_for_is_dropped(opened):
    port = await opened()
    call, client = await consumer(port)
    asked = ask(client, RequestCode.GET_CONSUMER_RUNNING_INFO, jstackEnable="true")
    nonce = (await call.read()).print_thread_stack_trace_command.nonce
    wrong = [
        s.TelemetryCommand(thread_stack_trace=s.ThreadStackTrace(nonce="other")),
        s.TelemetryCommand(verify_message_result=s.VerifyMessageResult(nonce=nonce)),
        s.TelemetryCommand(),
    ]
    for command in wrong:
        await call.write(command)
    stacks = s.ThreadStackTrace(nonce=nonce)
    refused = Status(code=Code.FORBIDDEN, message="not here")
    for _ in range(2):
        await call.write(s.TelemetryCommand(status=refused, thread_stack_trace=stacks))
    answer = await asked
    assert answer.code == ResponseCode.SYSTEM_ERROR and "not here" in answer.remark
    call.cancel()


async def test_a_client_that_does_not_answer_is_not_waited_for(opened):
    port = await opened()
    call, client = await consumer(port)
    with pytest.raises(RequestTimeout):
        await ask(client, RequestCode.GET_CONSUMER_RUNNING_INFO, timeout=0.01, jstackEnable="true")
    asked = ask(client, RequestCode.GET_CONSUMER_RUNNING_INFO, jstackEnable="true")
    await call.read()
    await call.read()
    call.cancel()
    with pytest.raises(RequestTimeout):
        await asked


async def test_other_requests_are_answered_that_gRPC_has_none(opened):
    port = await opened()
    call, client = await consumer(port)
    for code in (RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT):
        answer = await ask(client, code)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    call.cancel()


async def test_answers_that_were_asked_for_are_not_counted_as_commands(opened):
    port = await opened()
    call, client = await consumer(port)
    for _ in range(3 * MAX_COMMANDS):
        asked = ask(client, RequestCode.GET_CONSUMER_RUNNING_INFO, jstackEnable="true")
        nonce = (await call.read()).print_thread_stack_trace_command.nonce
        stacks = s.ThreadStackTrace(nonce=nonce)
        await call.write(s.TelemetryCommand(status=Status(code=Code.OK), thread_stack_trace=stacks))
        assert (await asked).code == 0
    call.cancel()
