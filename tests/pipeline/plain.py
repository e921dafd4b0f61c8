"""The plain slow reader that results of the pipeline must equal."""

from __future__ import annotations

from pathlib import Path

from broker_store.formats import record
from tests.support import stores


def records(store: Path) -> list[record.StoredMessage]:
    """The records of a sound store, decoded one by one."""
    found = []
    for base, data in stores.log_bytes(store):
        at = 0
        while at + 8 <= len(data) and record.read_head(data, at).is_record:
            found.append(record.decode(data, at, log_offset=base + at))
            at += found[-1].size
    return found
