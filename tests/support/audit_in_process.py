"""The pipeline's audit in this process: its tasks run one after the other, so no audit costs a start of
Spark."""

from pathlib import Path

from broker_store.engine.disk.file_sizes import FileSizes
from broker_store.engine.start.start_records import LastStart
from broker_store.formats import queue_unit
from broker_store.pipeline import audit
from broker_store.pipeline.options import PARTITION_BYTES

NOT_COMPARED = {kind for kinds in audit.CHECKED_ELSEWHERE.values() for kind in kinds} | {"empty", "log-start"}


class InOneProcess(audit._Audit):
    def _in_tasks(self, function, shared, items: list) -> list:
        return [function(shared, item) for item in items]


def audited(
    root: Path,
    partition_bytes: int = PARTITION_BYTES,
    noted: FileSizes | None = None,
    last_start: LastStart | None = None,
) -> dict:
    return InOneProcess(
        None,
        root,
        None,
        lambda *_: None,
        queue_unit.DEFAULT_DELAY_LEVELS_MS,
        partition_bytes,
        noted,
        last_start,
    ).run()
