"""EndTransaction and RecallMessage: a producer ends a transaction, or recalls a delayed message
(docs/spec/grpc.md section 4)."""

from __future__ import annotations

from broker_store.access.denied import Denied
from broker_store.access.resources import Action, on_topic_itself
from broker_store.formats import record
from broker_store.messages import PutResult
from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.grpc.v2.definition_pb2 import (
    Code,
    Status,
    TransactionResolution,
    TransactionSource,
)
from broker_store.protocol.grpc.v2.service_pb2 import (
    EndTransactionRequest,
    EndTransactionResponse,
    RecallMessageRequest,
    RecallMessageResponse,
)
from broker_store.server.grpc import transaction_ids
from broker_store.server.grpc.call import Call
from broker_store.server.grpc.names import check_user_topic
from broker_store.server.grpc.routes import Routes, check_type
from broker_store.server.grpc.statuses import OK, Refused, code_of_answer
from broker_store.server.handler import Refusal
from broker_store.server.parts import BrokerParts
from broker_store.server.send_group import SENT
from broker_store.server.timer import NOT_RECALLED, request_to_recall
from broker_store.server.transactions import EndOfTransaction, TransactionEnds

_RESOLUTIONS = {
    TransactionResolution.COMMIT: record.TRANSACTION_COMMIT,
    TransactionResolution.ROLLBACK: record.TRANSACTION_ROLLBACK,
}


class EndsOfTransactions:
    """Answers EndTransaction when the end is stored. Apache's proxy answers before."""

    def __init__(self, parts: BrokerParts, ends: TransactionEnds):
        self._parts, self._ends = parts, ends

    def end(self, call: Call, request: EndTransactionRequest) -> EndTransactionResponse | None:
        """Commit or roll back a transaction; return the answer if there is nothing to do. Raises Refused."""
        topic = request.topic.name
        check_user_topic(self._parts.topics, topic)
        if not request.transaction_id.strip():
            raise Refused(Code.INVALID_TRANSACTION_ID, "transaction id cannot be empty", "end of transaction")
        place = transaction_ids.decode(request.transaction_id)
        if place is None:
            raise Refused(Code.INTERNAL_SERVER_ERROR, "cannot found transaction data", "end of transaction")
        resolution = _RESOLUTIONS.get(request.resolution)
        if resolution is None:
            return EndTransactionResponse(status=OK)  # the producer does not know yet; it is asked later
        end = EndOfTransaction(
            topic,
            *place,
            resolution,
            request.source == TransactionSource.SOURCE_SERVER_CHECK,
            request.message_id,
            check_topic=lambda stated: self._check(call, stated),
        )

        def done(code: int, remark: str | None) -> None:
            status = OK if code == 0 else Status(code=code_of_answer(code), message=remark or str(code))
            call.answer(EndTransactionResponse(status=status))

        self._ends.end(end, call.channel.remote, done)
        return None

    def _check(self, call: Call, topic: str) -> None:
        """Raise Refusal if the producer may not send to the topic of the message."""
        access = self._parts.access
        if access is not None:
            try:
                access.authorize_call(
                    EndTransactionRequest.DESCRIPTOR.full_name,
                    call.user,
                    [on_topic_itself(topic, Action.PUB)],
                    call.channel.remote,
                )
            except Denied as error:
                access.note(error, call.channel.remote)
                raise Refusal(ResponseCode.NO_PERMISSION, str(error), error.cause) from None


class Recalls:
    """Answers RecallMessage when the recall is stored."""

    def __init__(self, parts: BrokerParts, routes: Routes):
        self._parts, self._routes = parts, routes

    def recall(self, call: Call, request: RecallMessageRequest) -> None:
        """Store that a delayed message shall not be delivered. Raises Refused or Refusal."""
        config = self._routes.topic(request.topic)
        check_type(config, "DELAY")
        message, unique_key = request_to_recall(
            self._parts, config.name, request.recall_handle, None, call.channel.remote_host
        )
        self._parts.sends.add(message, self._stored, (call, unique_key))

    def _stored(self, context: tuple[Call, str], result: PutResult) -> None:
        call, unique_key = context
        if result.status in SENT:
            call.answer(RecallMessageResponse(status=OK, message_id=unique_key))
        else:
            status = Status(code=Code.INTERNAL_SERVER_ERROR, message=NOT_RECALLED)
            call.answer(RecallMessageResponse(status=status))
