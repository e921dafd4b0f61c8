"""Telemetry: a client sends its settings, and works when it gets them back with those of the broker."""

from __future__ import annotations

from collections.abc import Callable

from google.protobuf.duration_pb2 import Duration

from broker_store.protocol.budget import Budget
from broker_store.protocol.grpc.framing import GrpcError, GrpcStatus, MessageReader
from broker_store.protocol.grpc.v2.definition_pb2 import (
    Code,
    ExponentialBackoff,
    Metric,
    RetryPolicy,
    Settings,
)
from broker_store.protocol.grpc.v2.service_pb2 import TelemetryCommand
from broker_store.server.grpc.clients import GrpcClient, GrpcClients
from broker_store.server.grpc.consumer_settings import merge_consumer
from broker_store.server.grpc.statuses import OK, Refused
from broker_store.server.grpc.unparsed import check_command
from broker_store.server.parts import BrokerParts

# Commands of one Telemetry. A client sends its settings every few minutes, and answers what it is asked. A
# command takes some 0.1 ms, and those of a frame could be 13,000.
MAX_COMMANDS = 16
COMMANDS_PER_S = 1

# How a producer tries again, as Apache's proxy sets it.
_PRODUCER_RETRIES = RetryPolicy(
    max_attempts=3,
    exponential_backoff=ExponentialBackoff(
        initial=Duration(nanos=10_000_000), max=Duration(seconds=1), multiplier=2.0
    ),
)


class Telemetry:
    """The commands of one client, on a call that stays open. It is known from its first settings on."""

    def __init__(
        self,
        parts: BrokerParts,
        clients: GrpcClients,
        client: GrpcClient,
        now_s: float,
        check: Callable[[Settings], None] | None = None,
    ):
        """`check` raises Refused for settings to which the client has not the right."""
        self._check = check
        self._reader = MessageReader()
        self._budget = Budget(MAX_COMMANDS, COMMANDS_PER_S, now_s)
        self._parts, self._clients = parts, clients
        self.client = client

    @property
    def kept(self) -> int:
        """Return the bytes of a command that is not complete."""
        return self._reader.kept

    def received(self, piece: bytes, now_s: float) -> list[TelemetryCommand | Refused]:
        """Return the answers to the commands that are complete with this piece, and the refusals of some:
        none is handled after one that is too many. Raises GrpcError and DecodeError."""
        answers: list[TelemetryCommand | Refused] = []
        for message in self._reader.read(piece):
            if not self._budget.spend(1, now_s):
                answers.append(Refused(Code.TOO_MANY_REQUESTS, "too many commands", "commands of Telemetry"))
                break
            try:
                check_command(message)
            except Refused as refused:
                answers.append(refused)
                continue
            command = TelemetryCommand.FromString(message)
            kind = command.WhichOneof("command")
            if kind == "settings":
                answers.append(self._answer(command.settings))
            elif kind in ("thread_stack_trace", "verify_message_result"):
                if self.client.answered(command):
                    self._budget.earn(1)
        return answers

    def _answer(self, settings: Settings) -> TelemetryCommand | Refused:
        try:
            return TelemetryCommand(status=OK, settings=self._merged(settings))
        except Refused as refused:
            return refused

    def _merged(self, given: Settings) -> Settings:
        """Return the settings of a client with those that the broker decides. Raises Refused."""
        if given.WhichOneof("pub_sub") is None:
            raise GrpcError(
                GrpcStatus.INVALID_ARGUMENT, "there is no publishing or subscription data in settings"
            )
        if self._check is not None:
            self._check(given)
        self._clients.take_settings(self.client, given)
        settings = Settings()
        settings.CopyFrom(given)
        settings.metric.CopyFrom(Metric(on=False))
        if settings.HasField("subscription"):
            group = self._parts.groups.get(self.client.group)
            assert group is not None  # the settings have made it
            merge_consumer(settings, group)
            return settings
        settings.backoff_policy.CopyFrom(_PRODUCER_RETRIES)
        settings.publishing.max_body_size = self._parts.store_settings.max_message_size
        settings.publishing.validate_message_type = True
        return settings
