"""Which groups were deleted with their offsets: config/deletedGroups.json (docs/spec/pop.md section 6).

    deleted ──► this file ──► offsets, positions and pops of the group are forgotten ──► answer

A new group of the same name begins as any new group. So what the log has of the old one's pops does not count
for it: records below the log offset of the deletion. An offset file is saved later; it states how many
deletions it includes, and a start forgets the offsets of groups that were deleted since.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from broker_store.errors import DamagedStoreError, FormatError
from broker_store.excerpts import excerpt, text_excerpt
from broker_store.formats import config_json

if TYPE_CHECKING:  # it brings the kernels, which a process of jobs does not need
    from broker_store.engine.store_protocol import Store

FILE_NAME = "deletedGroups.json"
# The file is written as a whole. Of more groups the deletions of longest ago are not kept.
MAX_ENTRIES = 10_000
_BEFORE, _NUMBER, _TABLE = "before", "number", "groups"


class Deletion(NamedTuple):
    """The last deletion of a group: the log offset where the log ended, and its number, counted from 1."""

    before: int
    number: int


class DeletedGroups:
    """The deletions. Loop's thread."""

    def __init__(self, store: Store):
        self._store = store
        self._table: dict[str, Deletion] = {}
        self._least = 0  # a number that was given before, and is not in the table

    @property
    def number(self) -> int:
        """Return the number of the last deletion, 0 without one."""
        return max([self._least, *(deletion.number for deletion in self._table.values())])

    def before(self, group: str) -> int:
        """Return the log offset below which records of a group's pops are of a deleted group; 0 for none."""
        deletion = self._table.get(group)
        return 0 if deletion is None else deletion.before

    def go_on_after(self, number: int) -> None:
        """Give later deletions numbers above this one, which an offset file states: this file may have been
        removed since."""
        self._least = max(self._least, number)

    def since(self, number: int) -> list[str]:
        """Return the groups that were deleted after the deletion of this number."""
        return [group for group, deletion in self._table.items() if deletion.number > number]

    def add(self, group: str) -> None:
        """Note that a group is deleted now. Raises StoreError; nothing has changed then."""
        table = {**self._table, group: Deletion(self._store.log.wrote, self.number + 1)}
        if len(table) > MAX_ENTRIES:
            del table[min(table, key=lambda name: table[name].number)]
        self._write(table)

    def lower(self, log_end: int) -> None:
        """Lower what lies beyond the end of the log: a power cut may take the end, and what is written there
        later is of new groups."""
        table = {
            group: deletion._replace(before=min(deletion.before, log_end))
            for group, deletion in self._table.items()
        }
        if table != self._table:
            self._write(table)

    def _write(self, table: dict[str, Deletion]) -> None:
        value = {_TABLE: {group: deletion._asdict() for group, deletion in table.items()}}
        self._store.write_config(FILE_NAME, json.dumps(value).encode())
        self._table = table

    def load(self, text: str) -> None:
        """Take over a deletedGroups.json. Raises DamagedStoreError when it is invalid; then nothing has
        changed."""
        try:
            self._table = read_file(text)
        except FormatError as error:
            advice = (
                "Put a sound copy in its place, or remove it and its .bak: then messages that deleted groups "
                "had popped may come again to new groups of their names."
            )
            raise DamagedStoreError(str(error), file=f"config/{FILE_NAME}", advice=advice) from error


def read_file(text: str) -> dict[str, Deletion]:
    """Return the last deletion by group. Raises FormatError."""
    _, table, _ = config_json.read_table(text, _TABLE)
    found = {}
    for group, value in table.items():
        if not isinstance(value, dict):
            raise FormatError(
                f"the deletion of group {excerpt(group)} must be an object", found=text_excerpt(value)
            )
        before, number = value.get(_BEFORE), value.get(_NUMBER)
        for name, number_found in ((_BEFORE, before), (_NUMBER, number)):
            if type(number_found) is not int or not 0 <= number_found < 1 << 63:
                raise FormatError(
                    f"{name} of the deletion of group {excerpt(group)} must be an integer of 0 to 2^63 - 1",
                    found=text_excerpt(number_found),
                )
        assert isinstance(before, int) and isinstance(number, int)
        found[str(group)] = Deletion(before, number)
    return found
