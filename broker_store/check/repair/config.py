"""Repair of the tables of config/: bad tables, tombstones of deleted topics, positions that are too high."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from broker_store.check.positions import GROUPS_FILE
from broker_store.check.repair.actions import Action, Replace, move_away
from broker_store.check.report import ERROR, NOTE
from broker_store.check.walk import StoreCheck
from broker_store.engine.config_files import BACKUP, DIRECTORY
from broker_store.engine.queue.tombstones import FILE_NAME as TOMBSTONES
from broker_store.formats import config_json
from broker_store.formats.topics import SCHEDULE_TOPIC

_TOPICS = "topics.json"
_MAX_NAMES = 100  # characters of the names of deleted topics in a sentence


class ConfigPlan:
    """Plans the actions on the files of config/."""

    def __init__(self, check: StoreCheck):
        self._check, self._disk, self._report = check, check.disk, check.report
        self._directory = check.root / DIRECTORY

    def tables(self) -> Iterator[Action]:
        """Put a good copy in the place of each bad table, or move the table away."""
        for finding in self._report.findings:
            if finding.kind != "config" or finding.severity == NOTE:
                continue
            path = Path(finding.file)
            size = self._disk.size_of(path) if self._disk.exists(path) else 0
            if finding.severity != ERROR:
                content = self._disk.read_file(path.with_name(path.name + BACKUP))
                if content is not None:
                    what = "Put the copy in its place that is beside it (.bak)."
                    yield Replace(path, 0, size, what, content)
            elif path.name == _TOPICS:
                what = (
                    "Make the table of topics from the queues: names and numbers of queues are right, "
                    "other settings are the default."
                )
                yield Replace(path, 0, size, what, self._topics())
            else:
                # With its bad .bak, because of which alone a start would be refused.
                name = path.name.removesuffix(BACKUP)
                reader = self._check.config_readers.get(name)
                without = f"; {reader.without}" if reader is not None and reader.without else ""
                is_read = reader is not None and not reader.takes_backup
                why = f"{name} cannot be read" if is_read else f"neither {name} nor its copy can be read"
                what = f"Move it away: {why}{without}."
                for one in (path.with_name(name), path.with_name(f"{name}{BACKUP}")):
                    if self._disk.exists(one):
                        yield move_away(self._disk, one, what)

    def _topics(self) -> bytes:
        counts: dict[str, int] = {}
        for topic, queue_id in self._check.queues:
            counts[topic] = max(counts.get(topic, 0), queue_id + 1)
        table = {
            topic: {
                "attributes": {},
                "order": False,
                "perm": 6,
                "readQueueNums": count,
                "topicFilterType": "SINGLE_TAG",
                "topicName": topic,
                "topicSysFlag": 0,
                "writeQueueNums": count,
            }
            for topic, count in sorted(counts.items())
        }
        return config_json.write(
            {"dataVersion": {"counter": 0, "stateVersion": 0, "timestamp": 0}, "topicConfigTable": table}
        ).encode()

    def deleted_topics(self) -> Iterator[Action]:
        """Write tombstones for deleted topics: Apache keeps none, and a start that reads the whole log would
        restore their messages."""
        deleted = self._check.deleted
        missing = {topic: end for topic, end in deleted.to.items() if deleted.before.get(topic, 0) < end}
        if missing:
            content = json.dumps({**deleted.before, **missing}).encode()
            what = (
                f"Note that records of {', '.join(sorted(missing)):.{_MAX_NAMES}} up to where their queues "
                f"begin are of deleted topics, so that they stay out."
            )
            yield Replace(self._directory / TOMBSTONES, 0, 0, what, content)

    def positions(self) -> Iterator[Action]:
        """Lower the positions that lie after the ends of their queues."""
        ahead: dict[str, dict[tuple[str, int, str], int]] = {}
        if any(finding.kind == "offset-ahead" for finding in self._report.findings):
            for one in self._check.positions.all():
                end = self._check.positions.end_of(one.topic, one.queue_id)
                if one.offset > end:
                    ahead.setdefault(one.file, {})[one.topic, one.queue_id, one.group] = (
                        end if one.group else self._first_due_late(one.queue_id, end)
                    )
        bad = {
            finding.file
            for finding in self._report.findings
            if finding.kind == "config" and finding.severity != NOTE
        }
        for name, ends in ahead.items():
            path = self._directory / name
            # A bad table is moved away, or its .bak takes its place, whose positions were not compared
            if str(path) not in bad:
                yield self._lower(path, ends)

    def _lower(self, path: Path, ends: dict[tuple[str, int, str], int]) -> Replace:
        """Write the table of positions with `ends`, by topic, queue id and group."""
        raw = self._disk.read_file(path) or b"{}"
        value: Any = config_json.read(raw)
        table = value["offsetTable"]
        for (topic, queue_id, group), end in ends.items():
            queues = table[f"{topic}@{group}"] if group else table
            number = queue_id if group else queue_id + 1
            queues[number if number in queues else str(number)] = end
        where = (
            "to the end of the queue, so that the next messages"
            if path.name == GROUPS_FILE
            else "to what became due after the level's newest message was stored, so that those that wait"
        )
        what = f"Lower {len(ends):,} offset{'s' if len(ends) > 1 else ''} {where} are not passed over."
        return Replace(path, 0, len(raw), what, config_json.write(value).encode())

    def _first_due_late(self, queue_id: int, end: int) -> int:
        """Return where a delay level goes on whose position is impossible, as a start decides it
        (`Delay._first_due_late`)."""
        levels_ms = self._check.delay_levels_ms
        queue = self._check.queues.get((SCHEDULE_TOPIC, queue_id))
        if queue is None or queue_id >= len(levels_ms) or end <= queue.first:
            return end
        due_ms = queue.units(queue.first, end - queue.first)["tags_code"].astype(np.int64)
        late = np.flatnonzero(due_ms > due_ms[-1] - levels_ms[queue_id])
        return queue.first + int(late[0]) if len(late) else end
