"""An asyncio client for this broker and Apache's: it needs nothing but Python.

- `Producer` sends messages.
- `TransactionProducer` sends messages that consumers get when a local transaction is committed.
- `PullConsumer` reads at given offsets.
- `PopConsumer` takes messages that the broker chooses, and acknowledges each.
- `PushConsumer` divides the queues of topics with the other members of its group, and delivers each message
  to a function or a loop.
- `Admin` reads and changes settings.
"""

from broker_store.access.signatures import Credentials, read_credentials
from broker_store.client.admin import Admin
from broker_store.client.assigned_queue import ReadAhead
from broker_store.client.errors import (
    AnswerError,
    ClientError,
    ConnectionLost,
    NoRouteError,
    PartlySent,
    RequestTimeout,
)
from broker_store.client.handling import GiveUp, RetryLater
from broker_store.client.link import tls_context
from broker_store.client.message import Outgoing, ReceivedMessage, SendReceipt
from broker_store.client.places import FilePlaces, Places
from broker_store.client.pop_consumer import PopConsumer, PoppedMessage
from broker_store.client.producer import Producer
from broker_store.client.pull_consumer import PullConsumer
from broker_store.client.pulling import PullResult, PullStatus
from broker_store.client.push_consumer import PushConsumer
from broker_store.client.transactions import Half, TransactionProducer
from broker_store.protocol.message_queue import MessageQueue
from broker_store.protocol.route_bodies import TopicRoute

__all__ = [
    "Admin",
    "AnswerError",
    "ClientError",
    "ConnectionLost",
    "Credentials",
    "FilePlaces",
    "GiveUp",
    "Half",
    "MessageQueue",
    "NoRouteError",
    "Outgoing",
    "PartlySent",
    "Places",
    "PopConsumer",
    "PoppedMessage",
    "Producer",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "ReadAhead",
    "ReceivedMessage",
    "RequestTimeout",
    "RetryLater",
    "SendReceipt",
    "TopicRoute",
    "TransactionProducer",
    "read_credentials",
    "tls_context",
]
