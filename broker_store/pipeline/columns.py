"""The columns of each table, with Spark's names of their types; light, because every plan of a query asks for
them.

What each holds stands in batches.py (records) and derived.py (the others). Those in NOT_UNASKED come only
when named.
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
        "body_plain": "binary",  # as its sender had it before it was compressed
        "queued": "boolean",  # whether a queue has a unit for it
        "tags_code": "long",  # what that unit must hold
        "entry_hashes": "array<long>",  # what the index must hold for it
        "problem": "string",  # what is wrong where no good record is
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
NOT_UNASKED = {"body_plain", "queued", "tags_code", "entry_hashes", "problem"}


def columns_of(table: str, wanted: tuple[str, ...] | None) -> tuple[str, ...]:
    """The columns that a reader gets who asks for `wanted`."""
    return wanted or tuple(name for name in COLUMNS[table] if table != "records" or name not in NOT_UNASKED)
