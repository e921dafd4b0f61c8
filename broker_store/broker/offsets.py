"""How far each group has consumed each queue (config/consumerOffset.json, docs/spec/store-behaviour.md
section 12).

A commit may be lower than the one before; the last one counts. A reset is kept twice: in the table, and as a
pending reset that the group's next pull receives. Until then commits of the group for that queue are accepted
and ignored, so that a consumer that does not know of the reset yet cannot undo it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from broker_store import throttle
from broker_store.broker.deleted_groups import DeletedGroups
from broker_store.broker.names import Names
from broker_store.engine.status import lag_offsets
from broker_store.errors import DamagedStoreError, FormatError, LimitError
from broker_store.excerpts import text_excerpt
from broker_store.formats import config_json
from broker_store.formats.config_json import DataVersion

FILE_NAME = "consumerOffset.json"
_SEPARATOR = "@"
# For how far all clients of a broadcasting group have pulled. No group can have this name.
_BROADCAST = lag_offsets.BROADCAST
# Pairs of a group and a topic. Clients commit for any existing group and topic, and each pair takes half a
# kilobyte.
MAX_PAIRS = 300_000
# In the file; Apache's broker ignores both.
_POPS_INCLUDED = "popsIncluded"
_LOG_END = "logEnd"  # where the log ended when the file was made
_GROUP_DELETIONS = "groupDeletions"  # the number of the last deletion of a group that the file includes


# How often a master may have saved a table, which raises its version, after its slave took it over last
RECENT_SAVES = 5


def is_outdated(version: DataVersion, own: DataVersion) -> bool:
    """Return whether a table of another broker of this name is certainly older than the own one."""
    return (version.state_version, version.counter + RECENT_SAVES) < (own.state_version, own.counter)


class TooManyOffsetsError(LimitError):
    """Offsets of a group in one more topic would exceed the bound of all groups together."""

    cause = "limit of offsets"


class Lowered(NamedTuple):
    """A position after the end of its queue that was set back to the end."""

    group: str
    topic: str
    queue_id: int
    before: int
    end: int

    def __str__(self) -> str:
        return (
            f"{self.group} was at {self.before:,} of {self.topic}/{self.queue_id}, which ends at {self.end:,}"
        )


class Offsets:
    """group and topic -> queue -> offset. `clock` returns milliseconds, `log_end` where the log ends."""

    def __init__(
        self,
        *,
        clock: Callable[[], int],
        max_pairs: int = MAX_PAIRS,
        names: Names | None = None,
        log_end: Callable[[], int] | None = None,
    ):
        self._clock, self._log_end, self.max_pairs = clock, log_end, max_pairs
        self._loaded_log_end: int | None = None  # of the file that was loaded
        self._names = names  # of groups; shared with other tables
        self._table: dict[tuple[str, str], dict[int, int]] = {}
        self._pulled: dict[tuple[str, str], dict[int, int]] = {}
        self._resets: dict[tuple[str, str], dict[int, int]] = {}
        self._groups: dict[str, set[str]] = {}
        self._readers: dict[str, set[str]] = {}  # topic -> groups
        self.data_version = DataVersion(timestamp=clock())
        self.keeps_version = False  # the table is a copy of a master's
        self.dirty = False
        # The log offset up to which pop checkpoints are in the table (docs/spec/pop.md section 4); None if
        # no group pops.
        self.pops_included: int | None = None
        # The number of the last deletion of a group that is in the table (deleted_groups.py); None if the
        # file did not say.
        self.group_deletions: int | None = 0
        self.on_reset: Callable[[str, str, int, int | None, int], None] = (
            lambda group, topic, queue_id, before, after: None
        )

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the pending reset, else the committed offset, else None."""
        pending = self._resets.get((group, topic))
        if pending and queue_id in pending:
            return pending[queue_id]
        queues = self._table.get((group, topic))
        return None if queues is None else queues.get(queue_id)

    def commit(self, group: str, topic: str, queue_id: int, offset: int, *, is_own: bool = False) -> bool:
        """Store a group's commit; False while a reset is pending. Raises TooManyOffsetsError, unless the
        group `is_own` of the broker."""
        pending = self._resets.get((group, topic))
        if pending and queue_id in pending:
            return False
        if not is_own and (group, topic) not in self._table:
            self.check_room(group, [topic])
        self._store(group, topic, queue_id, offset)
        return True

    def commit_broadcast(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Store where the slowest client of a broadcasting group pulls. It is only a statistic: skipped when
        the table is full."""
        if (group + _BROADCAST, topic) in self._table or len(self._table) < self.max_pairs:
            self._store(group + _BROADCAST, topic, queue_id, offset)

    def check_room(self, group: str, topics: Iterable[str]) -> None:
        """Raise TooManyOffsetsError without room for offsets of a group in all of these topics."""
        new = sum((group, topic) not in self._table for topic in topics)
        count = len(self._table)
        if new and count + new > self.max_pairs:
            what = (
                f"no room for offsets of group {group:.120} in {new} more topic{'s' if new > 1 else ''}: "
                f"all groups together have {count}"
            )
            raise TooManyOffsetsError(what, count, self.max_pairs)

    def _store(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        queues = self._table.get((group, topic))
        if queues is None:
            queues = self._begin(group, topic)
        if queues.get(queue_id) != offset:
            queues[queue_id] = offset
            self.dirty = True

    def _begin(self, group: str, topic: str) -> dict[int, int]:
        """Create the table of a group's offsets in a topic."""
        if group not in self._groups and self._names is not None and not group.endswith(_BROADCAST):
            self._names.add(group)
        self._groups.setdefault(group, set()).add(topic)
        self._readers.setdefault(topic, set()).add(group)
        queues = self._table[group, topic] = {}
        return queues

    def pulled(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note where the group's next pull begins; kept in memory only, for statistics."""
        queues = self._pulled.get((group, topic))
        if queues is None:
            queues = self._pulled[group, topic] = {}
        queues[queue_id] = offset

    def pulled_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        return self._pulled.get((group, topic), {}).get(queue_id)

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set an offset from outside the group; its next pull is sent there. Raises TooManyOffsetsError."""
        self.check_room(group, [topic])
        before = self.query(group, topic, queue_id)
        self._store(group, topic, queue_id, offset)
        self._resets.setdefault((group, topic), {})[queue_id] = offset
        self.on_reset(group, topic, queue_id, before, offset)

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return and remove the pending reset of a queue; None when there is none."""
        if not self._resets:
            return None
        pending = self._resets.get((group, topic))
        if pending is None or queue_id not in pending:
            return None
        offset = pending.pop(queue_id)
        if not pending:
            del self._resets[group, topic]
        return offset

    def of_group(self, group: str) -> dict[str, dict[int, int]]:
        """Return topic -> queue -> offset."""
        return {topic: dict(self._table[group, topic]) for topic in sorted(self._groups.get(group, ()))}

    def of_broadcast(self, group: str) -> dict[str, dict[int, int]]:
        """Return topic -> queue -> where the slowest client of a broadcasting group pulls."""
        return self.of_group(group + _BROADCAST)

    def of(self, group: str, topic: str) -> dict[int, int]:
        return dict(self._table.get((group, topic), {}))

    def everything(self) -> Iterator[tuple[str, str, dict[int, int]]]:
        """Return (group, topic, queue -> offset) of all, also of broadcasting groups, as of the call. Any
        thread."""
        return ((group, topic, queues) for (group, topic), queues in self._copies())

    def groups(self) -> list[str]:
        """Return the groups with committed offsets, without those that only broadcast."""
        return [group for group in self._groups if not group.endswith(_BROADCAST)]

    def groups_of_topic(self, topic: str) -> list[str]:
        """Return the groups with committed offsets of a topic."""
        return [group for group in self._readers.get(topic, ()) if not group.endswith(_BROADCAST)]

    @staticmethod
    def broadcasting(group: str) -> str:
        """Return the name under which the slowest client of a broadcasting group is kept."""
        return group + _BROADCAST

    @staticmethod
    def is_broadcasting(name: str) -> bool:
        return name.endswith(_BROADCAST)

    def topics_of(self, group: str) -> list[str]:
        """Return the topics of which a group has committed offsets, in no order."""
        return list(self._groups.get(group, ()))

    def lower_to_ends(self, end_of: Callable[[str, int], int | None]) -> list[Lowered]:
        """Set positions after the end of their queue back to it; return them.

        `end_of(topic, queue_id)` returns None where the end is not known; the position is then kept. After a
        power cut messages may be lost that were already read, while the file with the offset is not. New
        messages get the lost ones' numbers, and without this the group would skip them.
        """
        lowered = []
        for (group, topic), queues in self._table.items():
            for queue_id, offset in queues.items():
                end = end_of(topic, queue_id)
                if end is not None and offset > end:
                    queues[queue_id] = end
                    lowered.append(Lowered(group, topic, queue_id, offset, end))
        self.dirty |= bool(lowered)
        return lowered

    def clone(self, source: str, target: str, topic: str) -> list[int]:
        """Copy the offsets of `source` in a topic to `target`, and return their queues. Raises
        TooManyOffsetsError."""
        self.check_room(target, [topic])
        copied = self.of(source, topic)
        for queue_id, offset in copied.items():
            self._store(target, topic, queue_id, offset)
        return list(copied)

    def forget_group(self, group: str) -> None:
        for name in (group, group + _BROADCAST):
            for topic in list(self._groups.get(name, ())):
                self._forget(name, topic)

    def forget_topic(self, topic: str) -> None:
        for group in list(self._readers.get(topic, ())):
            self._forget(group, topic)

    def forget_deleted(self, deleted_before: Callable[[str], int]) -> list[str]:
        """Forget what the file states about topics that were deleted after it was made; return their names.

        `deleted_before(topic)` returns the log offset at which a topic was deleted, 0 for none. A kill may
        come before the offsets are saved without those of a deleted topic. A new topic of its name begins at
        0, and its groups would skip messages.
        """
        made_at = self._loaded_log_end
        if made_at is None:
            return []
        deleted = [topic for topic in self._readers if deleted_before(topic) >= max(1, made_at)]
        for topic in deleted:
            self.forget_topic(topic)
        return deleted

    def forget_deleted_groups(self, deleted: DeletedGroups) -> list[str]:
        """Forget what the file states about groups that were deleted after it was made; return their
        names."""
        included = self.group_deletions
        deleted.go_on_after(included or 0)
        self.group_deletions = deleted.number
        groups = (
            [] if included is None else [name for name in deleted.since(included) if name in self._groups]
        )
        for group in groups:
            self.forget_group(group)
        return groups

    def _forget(self, group: str, topic: str) -> None:
        for outer, inner, names in ((group, topic, self._groups), (topic, group, self._readers)):
            names[outer].discard(inner)
            if not names[outer]:
                del names[outer]
        if group not in self._groups and self._names is not None and not group.endswith(_BROADCAST):
            self._names.discard(group)
        for table in (self._table, self._pulled, self._resets):
            table.pop((group, topic), None)
        self.dirty = True

    def __len__(self) -> int:
        """Return the number of pairs of a group and a topic with offsets."""
        return len(self._table)

    # Persistence

    def entries(self) -> Iterator[tuple[str, dict[int, int]]]:
        """Return (topic@group, queue -> offset) of all, as of the call. Any thread."""
        return ((f"{topic}{_SEPARATOR}{group}", queues) for (group, topic), queues in self._copies())

    def _copies(self) -> Iterator[tuple[tuple[str, str], dict[int, int]]]:
        """Return ((group, topic), copy of queue -> offset) for pairs that exist now and still when they are
        reached."""
        # `list` takes all keys in one step, so the loop cannot change the table meanwhile. With `items` that
        # step would create a tuple for each pair while it holds the interpreter lock, and trigger the garbage
        # collector.
        keys = list(self._table)
        return ((key, queues.copy()) for key in keys if (queues := self._table.get(key)) is not None)

    def to_json(self) -> dict:
        """Return the content of consumerOffset.json."""
        return {"dataVersion": self.data_version.to_json(), "offsetTable": dict(self.entries())}

    def picture(self) -> Callable[[], bytes]:
        """Return a function that makes the file's text from the offsets as they are at its call, in any
        thread."""
        if not self.keeps_version:
            self.data_version = self.data_version.next(self._clock())
        head: dict[str, object] = {"dataVersion": self.data_version.to_json()}
        if self.pops_included is not None:
            head[_POPS_INCLUDED] = self.pops_included

        def text() -> bytes:
            self.dirty = False  # first, so that a later change is written by the next save
            if self.group_deletions is not None:
                head[_GROUP_DELETIONS] = self.group_deletions  # before the entries, as the next
            if self._log_end is not None:
                head[_LOG_END] = self._log_end()  # before the entries: a topic may be deleted meanwhile
            return config_json.write_table(
                head,
                "offsetTable",
                throttle.in_pieces(self.entries()),
            )

        return text

    def load(self, text: str) -> None:
        """Take over a consumerOffset.json. Raises DamagedStoreError when it is invalid; then nothing has
        changed."""
        try:
            found, version, self.pops_included, self._loaded_log_end, self.group_deletions = read_file(text)
        except FormatError as error:
            advice = (
                "Put a sound copy in its place; without it and its .bak groups begin as their clients decide."
            )
            raise DamagedStoreError(str(error), file=f"config/{FILE_NAME}", advice=advice) from error
        self.data_version = version
        for entry in found:
            self._store(*entry)
        self.dirty = False

    def take_newer(self, text: str) -> bool:
        """Take over the offsets of another broker of this name unless those here are newer; of tables that
        are about as new, the greater ones. Return whether any were taken. Raises FormatError."""
        found = read_file(text)
        own = self.data_version
        if is_outdated(found.version, own):
            return False
        is_older = found.version.is_older_than(own)
        for group, topic, queue_id, offset in found.entries:
            here = self._table.get((group, topic), {}).get(queue_id)
            if not is_older or here is None or offset > here:
                self._store(group, topic, queue_id, offset)
        self.data_version, self.dirty = own if is_older else found.version, True
        return True


class OffsetFile(NamedTuple):
    """A consumerOffset.json: (group, topic, queue id, offset) of each entry, its version, up to which log
    offset it includes pop checkpoints, where the log ended when it was made, and the number of the last
    deletion of a group that it includes; None if it does not say."""

    entries: list[tuple[str, str, int, int]]
    version: DataVersion
    pops_included: int | None
    log_end: int | None
    group_deletions: int | None


def read_file(text: str) -> OffsetFile:
    """Return what a consumerOffset.json states. Raises FormatError."""
    found = []
    value, table, version = config_json.read_table(text, "offsetTable")
    included, log_end, deletions = (
        _whole(value, name) for name in (_POPS_INCLUDED, _LOG_END, _GROUP_DELETIONS)
    )
    for key, queues in table.items():
        topic, separator, group = str(key).partition(_SEPARATOR)
        if not separator:
            raise FormatError("an entry of offsetTable is named topic@group", found=text_excerpt(key))
        for queue_id, offset in config_json.int_keys(queues, str(key)).items():
            if type(offset) is not int or not -1 << 63 <= offset < 1 << 63:
                raise FormatError(f"{key}: an offset is an integer of 64 bits", found=text_excerpt(offset))
            found.append((group, topic, queue_id, offset))
    return OffsetFile(found, version, included, log_end, deletions)


def _whole(value: Mapping[str, object], name: str) -> int | None:
    found = value.get(name)
    if found is None or type(found) is int and 0 <= found < 1 << 63:
        return found
    raise FormatError(f"{name} is an integer of 0 to 2^63 - 1", found=text_excerpt(found))
