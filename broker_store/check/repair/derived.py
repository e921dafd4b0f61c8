"""Queues and index with errors are moved away: the engine builds them again from the log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from broker_store.check.repair.actions import Move, move_away
from broker_store.check.repair.names import NamePlan
from broker_store.check.report import ERROR
from broker_store.check.walk import StoreCheck
from broker_store.engine.disk.mapped_file import is_file_name
from broker_store.formats import index_file
from broker_store.formats.queue_unit import LIGHT_QUEUE


def move_queues(check: StoreCheck, names: NamePlan, left: list[str]) -> Iterator[Move]:
    """Move the files of queues with an error. A queue that cannot be built from the log is noted in
    `left`."""
    for topic, queue_id in sorted(check.report.bad_queues):
        directory = check.root / "consumequeue" / topic / str(queue_id)
        if topic.startswith(LIGHT_QUEUE):
            left.append(
                f"{topic}/{queue_id} is a light queue: its units are of records of other topics "
                f"and cannot be made from the log."
            )
            continue
        # The newest first: a repair that ends in the middle leaves a queue that ends early.
        for name in reversed(names.names(directory)):
            if is_file_name(name):
                what = f"Take the file away; queue {topic}/{queue_id} is made again from the log."
                yield move_away(check.disk, names.now_at(directory / name), what)


def move_index(check: StoreCheck, changed_log: bool) -> Iterator[Move]:
    """Move the files of the index, if one has an error or the log is changed."""
    directory = check.root / "index"
    is_bad = any(
        finding.kind == "index-starts-late"
        or (
            finding.severity == ERROR
            and finding.kind != "stray-file"
            and Path(finding.file).parent == directory
        )
        for finding in check.report.findings
    )
    if is_bad or changed_log:
        for name in reversed([name for name in check.disk.list_names(directory) if index_file.is_name(name)]):
            what = "Take the file away; the index is made again from the log."
            yield move_away(check.disk, directory / name, what)
