"""The stops of the message that a page shows."""

from __future__ import annotations

from broker_store.errors import LookupNameError
from mqadmin.views.view import Stream


def check_log_offset(name: str) -> str:
    """`name` if it is a log offset; else LookupNameError."""
    if not (name.isascii() and name.isdigit() and len(name) < 19):
        raise LookupNameError("a message is named by its log offset")
    return name


STREAMS = {
    "message": Stream(
        lambda cluster, name: cluster.store.watched_journey(int(name)), 4, check_log_offset, in_thread=True
    ),
}
