"""Repair of wrong names, and removal of files that are no part of a store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from broker_store.check.repair.actions import Action, Create, Move, Rename, move_away
from broker_store.check.walk import StoreCheck


class NamePlan:
    """Plans the right names of files, and translates the paths of other actions between current and right
    names."""

    def __init__(self, check: StoreCheck):
        self._root, self._disk, self._report = check.root, check.disk, check.report
        self._misplaced = check.places.found

    def places(self) -> Iterator[Action]:
        """Set aside and rename the files whose content states another place than their name."""
        for path in self._misplaced.aside:
            what = "Move it out of the store: where its content belongs, its own file lies."
            yield move_away(self._disk, path, what)
        waiting = dict(self._misplaced.moves)
        while waiting:
            free = next((path for path, right in waiting.items() if right not in waiting), None)
            if free is not None:
                chain = [(free, waiting.pop(free))]
            else:  # each has the name of another
                first = path = next(iter(waiting))
                chain = []
                while path in waiting:
                    right = waiting.pop(path)
                    chain.append((path, right))
                    path = right
                assert path == first
            what = "; ".join(
                f"Rename {self._name(path)} to {self._name(right)}: by its content it begins there"
                for path, right in chain
            )
            yield Rename(chain[0][0], None, 0, f"{what}.", chain)

    def strays(self) -> Iterator[Move]:
        """Move files that are no part of a store out of it."""
        for finding in self._report.findings:
            if finding.kind == "stray-file" or (finding.kind == "file-name" and finding.queue is None):
                what = "Move it out of the store: it does not belong there."
                yield move_away(self._disk, Path(finding.file), what)

    def after_moves(self, action: Action) -> Action:
        """Return the same action once files have their right names. An action that makes a file has the right
        name already."""
        if isinstance(action, Create):
            return action
        return replace(action, path=self._misplaced.moves.get(action.path, action.path))

    def now_at(self, right: Path) -> Path:
        """Return the current path of the file that belongs at `right`."""
        return next((path for path, place in self._misplaced.moves.items() if place == right), right)

    def names(self, directory: Path) -> list[str]:
        """Return the names in a directory once files are in their right places."""
        gone = {*self._misplaced.aside, *self._misplaced.moves}
        # A path that is no directory is reported
        listed = self._disk.list_names(directory) if self._disk.is_directory(directory) else ()
        names = [name for name in listed if directory / name not in gone]
        return sorted(
            [*names, *(right.name for right in self._misplaced.moves.values() if right.parent == directory)]
        )

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._root)) if path.is_relative_to(self._root) else path.name
