"""Topics and groups as models for the admin, over the cluster instead of a table.

`ClusterQuerySet` is a list with the part of Django's QuerySet that the admin uses: filter, search, order,
slice, count, get. A query that needs names only (a count, a search in names, their order, a slice) reads
names only, and makes rows of the slice that is shown. An order or a condition by another field fetches all
rows. Nothing is stored here: the admin (mqadmin/admin/rows.py) saves through the cluster and writes the audit
record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.core.exceptions import FieldDoesNotExist, ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from broker_store.errors import NameError_
from broker_store.formats.names import check_group, check_topic, in_words
from broker_store.formats.topics import MESSAGE_TYPES
from broker_store.units import fields_of

if TYPE_CHECKING:
    from mqadmin.cluster.protocol import Cluster

MAX_QUEUES = 128
PERMISSIONS = ((6, "read and write"), (4, "read only"), (2, "write only"))


def _cluster() -> Cluster:
    """Return the cluster of this process, imported at the call: a child of runbroker has the models and no
    cluster."""
    from mqadmin.cluster.current import current_cluster

    return current_cluster()


class ClusterQuerySet(models.QuerySet):
    """The objects of a model with `names()`, `rows_of(names)` and `every_row()`. Queries that a list cannot
    answer raise NotImplementedError."""

    def __init__(
        self,
        model=None,
        query=None,
        using=None,
        hints=None,
        items: list | None = None,
        names: Sequence[str] | None = None,
    ):
        super().__init__(model=model, query=query, using=using, hints=hints)
        self._items = items
        self._names = names

    def _rows(self) -> list:
        if self._items is None:
            self._items = self.model.every_row() if self._names is None else self.model.rows_of(self._names)
        return self._items

    def _known_names(self) -> Sequence[str] | None:
        """Return the names of the rows where no row is needed for that; None where rows were fetched."""
        if self._items is not None:
            return None
        if self._names is None:
            self._names = self.model.names()
        return self._names

    def _with(self, items: list | None = None, names: Sequence[str] | None = None) -> ClusterQuerySet:
        return type(self)(model=self.model, using=self._db, hints=self._hints, items=items, names=names)

    def _clone(self) -> ClusterQuerySet:
        return self._with(None if self._items is None else list(self._items), self._names)

    _chain = _clone

    def __iter__(self) -> Iterator:
        return iter(self._rows())

    def __len__(self) -> int:
        names = self._known_names()
        return len(self._rows() if names is None else names)

    def __bool__(self) -> bool:
        return len(self) > 0

    def __getitem__(self, at: Any) -> Any:
        names = self._known_names()
        if names is None:
            return self._with(self._rows()[at]) if isinstance(at, slice) else self._rows()[at]
        return self._with(names=names[at]) if isinstance(at, slice) else self.model.rows_of([names[at]])[0]

    def iterator(self, chunk_size: int | None = None) -> Iterator:
        return iter(self._rows())

    def count(self) -> int:
        return len(self)

    def exists(self) -> bool:
        return len(self) > 0

    def all(self) -> ClusterQuerySet:
        return self._clone()

    def none(self) -> ClusterQuerySet:
        return self._with([])

    def first(self):
        return next(iter(self[:1]), None)

    def order_by(self, *names: str) -> ClusterQuerySet:
        if names and names[0].lstrip("-") in ("name", "pk") and (known := self._known_names()) is not None:
            return self._with(names=known[::-1] if names[0].startswith("-") else known)
        items = list(self._rows())
        for name in reversed(names):
            field = name.lstrip("-")
            attribute = "name" if field == "pk" else field
            # Unknown values come last in both directions.
            known = [item for item in items if getattr(item, attribute) is not None]
            unknown = [item for item in items if getattr(item, attribute) is None]
            items = (
                sorted(known, key=lambda item: getattr(item, attribute), reverse=name.startswith("-"))
                + unknown
            )
        return self._with(items)

    def filter(self, *conditions: models.Q, **lookups: Any) -> ClusterQuerySet:
        wanted = [*conditions, *([models.Q(**lookups)] if lookups else [])]
        if not wanted:
            return self._clone()
        if all(map(_is_of_names, wanted)) and (names := self._known_names()) is not None:
            return self._with(
                names=[name for name in names if all(_holds(_Named(name), condition) for condition in wanted)]
            )
        return self._with(
            [item for item in self._rows() if all(_holds(item, condition) for condition in wanted)]
        )

    def exclude(self, *conditions: models.Q, **lookups: Any) -> ClusterQuerySet:
        return self._with(
            [
                item
                for item in self._rows()
                if not all(_holds(item, condition) for condition in (*conditions, models.Q(**lookups)))
            ]
        )

    def get(self, *conditions: models.Q, **lookups: Any):
        found = self.filter(*conditions, **lookups)._rows()
        if len(found) != 1:
            raise (self.model.DoesNotExist if not found else self.model.MultipleObjectsReturned)(
                f"{len(found)} found"
            )
        return found[0]

    def select_related(self, *names: str) -> ClusterQuerySet:
        return self

    def distinct(self, *names: str) -> ClusterQuerySet:
        return self

    def using(self, alias: str) -> ClusterQuerySet:
        return self

    def delete(self):
        raise NotImplementedError(
            "the admin deletes through the cluster, one by one, with an audit record each"
        )

    def values_list(self, *names: str, flat: bool = False, named: bool = False) -> list:
        attributes = ["name" if name == "pk" else name for name in names]
        rows = [tuple(getattr(item, name) for name in attributes) for item in self._rows()]
        return [row[0] for row in rows] if flat else rows


@dataclass(frozen=True, slots=True)
class _Named:
    """A row with only the fields that conditions on names read."""

    name: str


def _is_of_names(condition: Any) -> bool:
    """Return whether a condition reads names only."""
    return isinstance(condition, models.Q) and all(
        _is_of_names(child) if isinstance(child, models.Q) else child[0].partition("__")[0] in ("name", "pk")
        for child in condition.children
    )


def _holds(item: Any, condition: Any) -> bool:
    if not isinstance(condition, models.Q):
        raise NotImplementedError(f"a condition of type {type(condition).__name__}")
    results = [
        _holds(item, child) if isinstance(child, models.Q) else _compare(item, *child)
        for child in condition.children
    ]
    held = all(results) if condition.connector == models.Q.AND else any(results)
    return held != condition.negated


def _compare(item: Any, lookup: str, wanted: Any) -> bool:
    name, _, how = lookup.partition("__")
    value = getattr(item, "name" if name == "pk" else name)
    if how in ("", "exact"):
        return value == wanted or str(value) == str(wanted)
    if how == "in":
        return str(value) in {str(one) for one in wanted}
    if how == "icontains":
        return str(wanted).lower() in str(value).lower()
    if how == "isnull":
        return (value is None) == bool(wanted)
    raise NotImplementedError(f"the lookup {lookup}")


class ClusterManager(models.Manager):
    def get_queryset(self) -> ClusterQuerySet:
        return ClusterQuerySet(model=self.model, using=self._db)


class ClusterObject(models.Model):
    """The base of topics and groups: the name is the key, and rows come from the cluster."""

    objects = ClusterManager()

    class Meta:
        abstract = True
        managed = False
        # Without it the check for unique names of a new object queries a table that does not exist.
        base_manager_name = "objects"

    def __str__(self) -> str:
        return self.pk

    @classmethod
    def of(cls, row: Any):
        """Return an object from a row of the cluster; facts that are no fields of it are left out."""
        known = {}
        for name, value in fields_of(row).items():
            try:
                cls._meta.get_field(name)
            except FieldDoesNotExist:
                continue
            known[name] = value
        made = cls(**known)
        made._state.adding = False
        return made


def validate_topic(name: str) -> None:
    """Check the name of a topic (formats/names.py). Raises ValidationError."""
    try:
        check_topic(name)
    except NameError_ as error:
        raise ValidationError(in_words(error)) from None


def validate_group(name: str) -> None:
    try:
        check_group(name)
    except NameError_ as error:
        raise ValidationError(in_words(error)) from None


QUEUE_COUNT = [MinValueValidator(1), MaxValueValidator(MAX_QUEUES)]


class Topic(ClusterObject):
    """A topic of the cluster."""

    name = models.CharField(max_length=255, primary_key=True, validators=[validate_topic])
    kind = models.CharField(max_length=10, default="normal", editable=False)
    read_queues = models.PositiveIntegerField(default=8, validators=QUEUE_COUNT)
    write_queues = models.PositiveIntegerField(default=8, validators=QUEUE_COUNT)
    perm = models.PositiveSmallIntegerField("permission", default=6, choices=PERMISSIONS)
    order = models.BooleanField("ordered", default=False)
    message_type = models.CharField(
        max_length=255, default="NORMAL", choices=[(kind, kind) for kind in MESSAGE_TYPES]
    )
    messages = models.BigIntegerField(null=True, editable=False)
    groups = models.IntegerField(null=True, editable=False)

    class Meta(ClusterObject.Meta):
        abstract = False
        app_label = "mqadmin"
        ordering = ("name",)

    @classmethod
    def names(cls) -> Sequence[str]:
        cluster = _cluster()
        return cluster.call(cluster.topics.names)

    @classmethod
    def rows_of(cls, names: Sequence[str]) -> list[Topic]:
        cluster = _cluster()
        return [cls.of(row) for row in _in_pieces(cluster, cluster.topics.rows, names)]

    @classmethod
    def every_row(cls) -> list[Topic]:
        cluster = _cluster()
        return [cls.of(row) for row in cluster.run(cluster.topics.every())]


class Group(ClusterObject):
    """A subscription group of the cluster."""

    name = models.CharField(max_length=255, primary_key=True, validators=[validate_group])
    kind = models.CharField(max_length=10, default="normal", editable=False)
    consume_enable = models.BooleanField("may consume", default=True)
    broadcast = models.BooleanField("may broadcast", default=True)
    orderly = models.BooleanField("in order only", default=False)
    retry_queues = models.PositiveIntegerField(default=1, validators=QUEUE_COUNT)
    retry_max_times = models.IntegerField(
        "retries", default=16, validators=[MinValueValidator(-1), MaxValueValidator(10_000)]
    )
    clients = models.IntegerField(null=True, editable=False)
    lag = models.BigIntegerField(null=True, editable=False)

    class Meta(ClusterObject.Meta):
        abstract = False
        app_label = "mqadmin"
        verbose_name = "consumer group"
        ordering = ("name",)
        permissions = (("reset_offset", "Can reset offsets of a group"),)

    @classmethod
    def names(cls) -> Sequence[str]:
        cluster = _cluster()
        return cluster.call(cluster.groups.names)

    @classmethod
    def rows_of(cls, names: Sequence[str]) -> list[Group]:
        cluster = _cluster()
        return [cls.of(row) for row in _in_pieces(cluster, cluster.groups.rows, names)]

    @classmethod
    def every_row(cls) -> list[Group]:
        cluster = _cluster()
        return [cls.of(row) for row in cluster.run(cluster.groups.every())]


# Rows that one call on the loop makes.
ROWS_PER_CALL = 50


def _in_pieces(cluster: Any, rows_of: Callable[[list[str]], list], names: Sequence[str]) -> Iterator:
    for begin in range(0, len(names), ROWS_PER_CALL):
        yield from cluster.call(rows_of, names[begin : begin + ROWS_PER_CALL])
