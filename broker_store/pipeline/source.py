"""The Spark data source `rocketmq`: the records of a store directory, whether a broker runs on it or not.

    spark.dataSource.register(RocketMQDataSource)
    spark.read.format("rocketmq").option("store", "/data/store").option("live", "/data/run/live").load()

`live` is the live page of the broker that runs on the store; without it everything in the files is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from broker_store.errors import MisuseError
from broker_store.pipeline.splits import Split, splits_of

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = "topic string, queue_id int, queue_offset long, log_offset long, store_time timestamp, record_bytes int, sys_flag int"


@dataclass
class StretchPartition(InputPartition):
    """One stretch of the log; what travels to a worker."""

    split: Split


class RocketMQDataSource(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema) -> RocketMQReader:
        store = self.options.get("store")
        if not store:
            raise MisuseError("the source needs option store, a store directory")
        return RocketMQReader(store, self.options.get("live"))


class RocketMQReader(DataSourceReader):
    """Reads one store."""

    def __init__(self, store: str, live: str | None):
        self._store, self._live = store, live

    def partitions(self) -> list[StretchPartition]:
        splits = splits_of(Path(self._store), Path(self._live) if self._live else None)
        return [StretchPartition(split) for split in splits]

    def read(self, partition: StretchPartition | None) -> Iterator[pa.RecordBatch]:
        # Numba and Arrow are loaded in the worker that reads, not where the query is planned. A store without a
        # record has no partition, for which Spark asks once with None.
        from broker_store.pipeline.batches import batches_of

        if partition is not None:
            yield from batches_of(partition.split)
