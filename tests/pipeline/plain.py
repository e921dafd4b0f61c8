"""The plain slow reader that results of the pipeline must equal."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import pytest

from broker_store.formats import record
from tests.support import stores

NAMES = {"topics": ("topic",), "tags": ("topic", "tags"), "groups": ("group",), "hours": ("hour_ms",)}
CELLS = {
    "topics": lambda one: (one.topic,),
    "tags": lambda one: (one.topic, one.tags),
    "groups": lambda one: (group_of(one),),
    "hours": lambda one: (one.store_timestamp // 3_600_000 * 3_600_000,),
}


def group_of(one: record.StoredMessage) -> str | None:
    """Of a retry or dead-letter topic, else the producers' group of a transaction."""
    for prefix in ("%RETRY%", "%DLQ%"):
        if one.topic.startswith(prefix):
            return one.topic.removeprefix(prefix)
    return one.properties.get("PGROUP")


def records(store: Path) -> list[record.StoredMessage]:
    """The records of a sound store, decoded one by one."""
    found = []
    for base, data in stores.log_bytes(store):
        at = 0
        while at + 8 <= len(data) and record.read_head(data, at).is_record:
            found.append(record.decode(data, at, log_offset=base + at))
            at += found[-1].size
    return found


def assert_statistics(result: dict, records: list[record.StoredMessage]) -> None:
    """The result of the job `statistics` says of the records what counting them one by one does."""
    for name, cell_of in CELLS.items():
        cells = defaultdict(list)
        for one in records:
            cells[cell_of(one)].append(one)
        cells.pop((None,), None)
        names = NAMES[name]
        assert {tuple(row[part] for part in names) for row in result[name]} == set(cells)
        for row in result[name]:
            mine = cells[tuple(row[part] for part in names)]
            sizes, delays = (
                [one.size for one in mine],
                [one.store_timestamp - one.born_timestamp for one in mine],
            )
            assert (row["messages"], row["bytes"], row["smallest"], row["largest"]) == (
                len(mine),
                sum(sizes),
                min(sizes),
                max(sizes),
            )
            assert row["distinct_keys"] == len({key for one in mine for key in one.keys})
            for share in (50, 95, 99):
                assert row[f"size_p{share}"] == rank(sizes, share)
                assert row[f"delay_ms_p{share}"] == rank(delays, share)
            if name == "topics":
                assert row["queues"] == len({one.queue_id for one in mine})
                assert (row["first_ms"], row["last_ms"]) == (
                    min(one.store_timestamp for one in mine),
                    max(one.store_timestamp for one in mine),
                )
    keys = Counter((one.topic, key) for one in records for key in one.keys)
    often = {place: count for place, count in keys.items() if count > 1}
    assert {
        (row["topic"], row["key"]): row["messages"] for row in result["hot_keys"]
    }.items() <= often.items()
    assert [row["messages"] for row in result["hot_keys"][:1]] == sorted(often.values(), reverse=True)[:1]
    assert (result["messages"], result["bytes"]) == (len(records), sum(one.size for one in records))
    for file in result["index"]:
        assert (
            file["longest_chain"] >= file["mean_chain"] == pytest.approx(file["entries"] / file["slots_used"])
        )


def rank(values: list[int], share: int) -> int:
    """The smallest value of which that share (per cent) of all are not greater."""
    return sorted(values)[-(-share * len(values) // 100) - 1]
