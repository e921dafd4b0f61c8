"""The columns of each table, with Spark's names of their types. Light, because each plan of a query imports
it.

What each column has is in batches.py (records) and derived.py (the others). Columns in ON_REQUEST are read
only when they are named.
"""

from __future__ import annotations

COLUMNS: dict[str, dict[str, str]] = {
    "records": {
        "topic": "string",
        "queue_id": "int",
        "queue_offset": "long",
        "log_offset": "long",
        "record_bytes": "int",
        "version": "int",
        "store_time": "timestamp",
        "store_host": "string",
        "born_time": "timestamp",
        "born_host": "string",
        "flag": "int",
        "sys_flag": "int",
        "body_crc": "int",
        "reconsume_times": "int",
        "prepared_offset": "long",
        "properties": "map<string,string>",
        "tags": "string",
        "keys": "array<string>",
        "unique_key": "string",
        "body_bytes": "int",
        "body": "binary",
        "body_plain": "binary",  # as the sender had it before compression
        "queued": "boolean",  # True if a queue has a unit for it
        "tags_code": "long",  # what that unit must hold
        "entry_hashes": "array<long>",  # what the index must hold for it
        "problem": "string",  # what is wrong, in a row for a part of the log without a valid record
    },
    "units": {
        "topic": "string",
        "queue_id": "int",
        "queue_offset": "long",
        "log_offset": "long",
        "record_bytes": "int",
        "tags_code": "long",
    },
    "entries": {
        "file": "string",
        "entry": "long",
        "slot": "long",
        "key_hash": "long",
        "log_offset": "long",
        "seconds": "long",
        "previous": "long",
    },
    "slots": {"file": "string", "slot": "long", "entry": "long"},
    "index_files": {
        "file": "string",
        "slots": "long",
        "room": "long",
        "entries": "long",
        "slots_used": "long",
        "begin_offset": "long",
        "end_offset": "long",
        "begin_ms": "long",
        "end_ms": "long",
    },
}
ON_REQUEST = {"body_plain", "queued", "tags_code", "entry_hashes", "problem"}


def columns_of(table: str, wanted: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the columns of a table for a reader that requests `wanted`; None requests the default."""
    return wanted or tuple(name for name in COLUMNS[table] if table != "records" or name not in ON_REQUEST)
