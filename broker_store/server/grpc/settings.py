"""Telemetry: a client sends its settings, and works when it gets them back with those of the broker."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

from broker_store.protocol.grpc.framing import MessageReader
from broker_store.protocol.grpc.v2.definition_pb2 import (
    Code,
    ExponentialBackoff,
    Metric,
    RetryPolicy,
    Settings,
)
from broker_store.protocol.grpc.v2.service_pb2 import TelemetryCommand
from broker_store.server.grpc.statuses import OK, Refused

# How a producer tries again, as Apache's proxy sets it.
_PRODUCER_RETRIES = RetryPolicy(
    max_attempts=3,
    exponential_backoff=ExponentialBackoff(
        initial=Duration(nanos=10_000_000), max=Duration(seconds=1), multiplier=2.0
    ),
)


class Telemetry:
    """The commands of one client, on a call that stays open."""

    def __init__(self, max_body: int):
        self._reader = MessageReader()
        self._max_body = max_body

    @property
    def kept(self) -> int:
        """Return the bytes of a command that is not complete."""
        return self._reader.kept

    def received(self, piece: bytes) -> list[TelemetryCommand]:
        """Return the answers to the commands that are complete with this piece."""
        answers: list[TelemetryCommand] = []
        for message in self._reader.read(piece):
            command = TelemetryCommand.FromString(message)
            if command.WhichOneof("command") == "settings":
                answers.append(self._answer(command.settings))
        return answers

    def _answer(self, settings: Settings) -> TelemetryCommand:
        try:
            return TelemetryCommand(status=OK, settings=self._merged(settings))
        except Refused as refused:
            return TelemetryCommand(status=refused.status)

    def _merged(self, given: Settings) -> Settings:
        """Return the settings of a producer with those that the broker decides."""
        if given.WhichOneof("pub_sub") != "publishing":
            raise Refused(Code.NOT_IMPLEMENTED, "consumers are not served yet", "not implemented")
        settings = Settings()
        settings.CopyFrom(given)
        settings.backoff_policy.CopyFrom(_PRODUCER_RETRIES)
        settings.publishing.max_body_size = self._max_body
        settings.publishing.validate_message_type = True
        settings.metric.CopyFrom(Metric(on=False))
        return settings
