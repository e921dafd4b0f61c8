"""Where the fields of a `Message` lie in memory, for the kernel that reads them (kernels/describe).

An object of a class with slots has one pointer for each field, at a fixed place, which is measured here. What
is assumed of CPython 3.11 to 3.13 (the heads of str, bytes, int and tuple) is tested on known objects first.
"""

from __future__ import annotations

import ctypes
import sys

from broker_store.engine.rows import Words
from broker_store.errors import MisuseError
from broker_store.kernels import context as c
from broker_store.kernels.describe import TUPLE_ITEMS
from broker_store.messages import Message

_WORD = 8
_FIELDS = {
    "topic": c.M_TOPIC,
    "queue_id": c.M_QUEUE_ID,
    "body": c.M_BODY,
    "properties": c.M_PROPERTIES,
    "flag": c.M_FLAG,
    "sys_flag": c.M_SYS_FLAG,
    "born_timestamp": c.M_BORN_TIMESTAMP,
    "born_host": c.M_BORN_HOST,
    "store_host": c.M_STORE_HOST,
    "reconsume_times": c.M_RECONSUME_TIMES,
    "prepared_transaction_offset": c.M_PREPARED_OFFSET,
}
BYTES_DATA = bytes.__basicsize__ - 1


def _word(address: int) -> int:
    return ctypes.c_int64.from_address(address).value


def message_layout() -> Words:
    """Return the M_* words. Raises MisuseError on an interpreter whose objects have another layout."""
    layout = Words(c.M_WORDS)
    # Each field holds an object of its own, by whose address its place is found.
    probe = Message(**{name: object() for name in _FIELDS})  # type: ignore[arg-type]  # see above
    places = {_word(id(probe) + at): at for at in range(2 * _WORD, Message.__basicsize__, _WORD)}
    for name, word in _FIELDS.items():
        at = places.get(id(getattr(probe, name)))
        if at is None:
            raise MisuseError(
                f"this Python keeps Message.{name} where kernels cannot read it; CPython 3.11 to "
                f"3.13 is needed"
            )
        layout[word] = at
    layout[c.M_STR_TYPE], layout[c.M_BYTES_TYPE] = id(str), id(bytes)
    layout[c.M_INT_TYPE], layout[c.M_TUPLE_TYPE], layout[c.M_NONE] = id(int), id(tuple), id(None)
    layout[c.M_STR_DATA] = sys.getsizeof("") - 1
    layout[c.M_BYTES_DATA] = BYTES_DATA
    layout[c.M_INT_TAGGED] = int(sys.version_info >= (3, 12))
    _try(layout)
    return layout


def _try(layout: Words) -> None:
    """Read known objects as the kernel will. Raises MisuseError where the result is wrong."""
    text, data, pair = f"topic{len(_FIELDS)}", bytes(range(9)), (b"1", 2)
    minus = -(5 << 30 | 3)
    size = _word(id(minus) + 2 * _WORD)
    sound = (
        all(_word(id(known) + _WORD) == id(type(known)) for known in (text, data, pair, minus))
        and ctypes.string_at(id(text) + layout[c.M_STR_DATA], len(text)) == text.encode()
        and _word(id(text) + 2 * _WORD) == len(text)
        and [_word(id(known) + 4 * _WORD) & 0x60 for known in (text, "\u00e9t\u00e9", "\u0436")]
        == [0x60, 0x20, 0x20]
        and ctypes.string_at(id(data) + BYTES_DATA, len(data)) == data
        and _word(id(data) + 2 * _WORD) == len(data)
        and [_word(id(pair) + TUPLE_ITEMS + _WORD * n) for n in (0, 1)] == [id(pair[0]), id(pair[1])]
        and size == ((2 << 3 | 2) if layout[c.M_INT_TAGGED] else -2)
        and [ctypes.c_int32.from_address(id(minus) + at).value for at in (24, 28)] == [3, 5]
    )
    if not sound:
        raise MisuseError(
            f"Python {sys.version.split()[0]} lays its objects out in a way that kernels do not "
            f"know; CPython 3.11 to 3.13 is needed"
        )
