"""The Spark data source `rocketmq`: a store directory as tables, whether a broker runs on it or not.

    spark.dataSource.register(RocketMQDataSource)
    spark.read.format("rocketmq").option("topic", "orders").load("/data/store")

Options are in options.py, columns in batches.py and derived.py. Spark's interface for sources in Python does
not report which columns a query uses: the option `columns`, or a given schema, leaves out those that are not
needed. Filters are pushed down where numbers, topics and tags answer them. `open_session` enables that;
another session must set spark.sql.python.filterPushdown.enabled.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import datasource as ds

from broker_store.engine.disk.disk import Disk
from broker_store.errors import MisuseError
from broker_store.pipeline.columns import COLUMNS, columns_of
from broker_store.pipeline.options import Options, Test, microseconds, read_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from broker_store.pipeline.derived import Pieces
    from broker_store.pipeline.splits import Split

_OPERATORS = {
    ds.EqualTo: "in",
    ds.GreaterThan: ">",
    ds.GreaterThanOrEqual: ">=",
    ds.LessThan: "<",
    ds.LessThanOrEqual: "<=",
}
_NUMBERS = {
    "queue_id",
    "queue_offset",
    "log_offset",
    "record_bytes",
    "sys_flag",
    "reconsume_times",
    "body_bytes",
}
_NEVER_NULL = _NUMBERS | {"topic", "store_time"}


@dataclass
class Partition(ds.InputPartition):
    """One stretch of the log, or some pieces of the derived files; it is sent to a worker. None means nothing
    to read."""

    value: Split | Pieces | None


class RocketMQDataSource(ds.DataSource):
    """The data source; see the module."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> str:
        options = read_options(self.options)
        wanted = columns_of(options.table, options.columns)
        return ", ".join(f"`{name}` {_spark_type(options.table, name)}" for name in wanted)

    def reader(self, schema: StructType) -> RocketMQReader:
        options = read_options(self.options)
        for field in schema.fields:
            _spark_type(options.table, field.name)
        return RocketMQReader(options, tuple(schema.fieldNames()))


def _spark_type(table: str, name: str) -> str:
    if name not in COLUMNS[table]:
        raise MisuseError(f"the table {table} has no column {name}; it has {', '.join(COLUMNS[table])}")
    return COLUMNS[table][name]


class RocketMQReader(ds.DataSourceReader):
    """Reads one table of one store."""

    def __init__(self, options: Options, columns: tuple[str, ...]):
        self._options, self._columns = options, columns

    def pushFilters(self, filters: list[ds.Filter]) -> Iterable[ds.Filter]:
        for given in filters:
            test = (
                _test_of(given)
                if self._options.table == "records" and self._options.damage != "report"
                else None
            )
            if test is not None:
                self._options = dataclasses.replace(self._options, tests=(*self._options.tests, *test))
            else:
                yield given

    def partitions(self) -> list[Partition]:
        # Planning a query imports neither Arrow nor Numba.
        from broker_store.pipeline import splits

        options, disk = self._options, Disk()
        if options.table == "records":
            splits.log_files(options.path, disk)
            splits.check_topics(options.path, options.topics, disk)
            work: Sequence[Split | Pieces] = splits.splits_of(
                options.path, options.live, options.tests, options.partition_bytes, disk
            )
        else:
            from broker_store.pipeline.derived import pieces_of

            work = pieces_of(options, disk)
        # With an empty list Spark would call `read` once with a value of its own.
        return [Partition(one) for one in work] or [Partition(None)]

    def read(self, partition: Partition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]  # of `partitions`
        from broker_store.pipeline import batches, derived

        if partition.value is None:
            return
        read: Callable[..., Iterator[pa.RecordBatch]] = (
            batches.batches_of if self._options.table == "records" else derived.batches_of
        )
        yield from read(partition.value, self._columns, self._options)
        if not gc.get_freeze_count():
            # Spark's worker collects garbage after each task. Objects of Arrow and Numba live on, and are
            # then not scanned each time (85 ms).
            gc.freeze()


def _test_of(given: ds.Filter) -> tuple[Test, ...] | None:
    """Return the filter as tests, () when it is always true; None when Spark must apply it itself."""
    attribute: tuple[str, ...] = getattr(given, "attribute", ())
    if len(attribute) != 1:
        return None
    (column,) = attribute
    if isinstance(given, ds.IsNotNull):
        return () if column in _NEVER_NULL else None
    values = given.value if isinstance(given, ds.In) else (getattr(given, "value", None),)
    operator = "in" if isinstance(given, ds.In) else _OPERATORS.get(type(given))
    if operator is None or not values:
        return None
    if column == "store_time" and operator != "in" and isinstance(values[0], datetime):
        return ((column, operator, microseconds(values[0])),)
    is_number = column in _NUMBERS and all(
        isinstance(value, int) and not isinstance(value, bool) for value in values
    )
    is_name = (
        column in ("topic", "tags") and operator == "in" and all(isinstance(value, str) for value in values)
    )
    if not (is_number or is_name):
        return None
    return ((column, operator, tuple(values) if operator == "in" else values[0]),)
