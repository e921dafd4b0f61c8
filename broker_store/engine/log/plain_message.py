"""A message whose fields are of other types than kernels read: subclasses, memoryviews, lists.

The append kernel reads a `Message` at the addresses of its fields (`object_layout.py`), which it knows for
exactly str, bytes, int and tuple. Every other message comes here once.
"""

from __future__ import annotations

from broker_store.messages import Message

_INTEGERS = (
    "queue_id",
    "flag",
    "sys_flag",
    "born_timestamp",
    "reconsume_times",
    "prepared_transaction_offset",
)


def make_plain(message: Message) -> bool:
    """Convert the fields to exactly str, bytes, int and (bytes, int); return False when they cannot be
    converted."""
    message.topic = str(message.topic)
    message.body, message.properties = bytes(message.body), bytes(message.properties)
    for name in _INTEGERS:
        setattr(message, name, int(getattr(message, name)))
    hosts = [host for host in (message.born_host, message.store_host) if host is not None]
    message.born_host = _plain_host(message.born_host)
    message.store_host = _plain_host(message.store_host) if message.store_host is not None else None
    return (
        message.topic.isascii()
        and all(abs(getattr(message, name)) < 1 << 63 for name in _INTEGERS)
        and all(len(address) in (4, 16) and abs(port) < 1 << 63 for address, port in hosts)
    )


def _plain_host(host: tuple[bytes, int]) -> tuple[bytes, int]:
    address, port = host
    return bytes(address), int(port)
