"""The lab's writer, a process of its own: it writes messages until it is killed, at the first chance after a
given number.

    python -m broker_store.lab.writer DIRECTORY EXPERIMENT       reports on its standard output what it sent
                                                                 and what was acknowledged
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path

from broker_store.config.store import StoreSettings
from broker_store.engine.store import MessageStore
from broker_store.errors import MisuseError
from broker_store.formats import properties
from broker_store.lab.disk import LabDisk
from broker_store.lab.experiment import Experiment
from broker_store.messages import Message, PutStatus

MARK = "this-is-a-crash-lab"
TOPIC, QUEUES = "Lab", 3
WRITE_SECONDS = 30.0
_PAUSE_S = 0.001  # after each message: without it no flusher thread would run in between


def settings(root: Path, flush: str) -> StoreSettings:
    """Return settings with files so small that they roll."""
    return StoreSettings(
        store_path_root_dir=root,
        flush_disk_type=flush,
        mapped_file_size_commit_log=65536,
        mapped_file_size_consume_queue=2000,
        max_hash_slot_num=100,
        max_index_num=400,
        flush_interval_commit_log=50,
        flush_interval_consume_queue=100,
        flush_consume_queue_thorough_interval=100,
        timer_wheel_enable=False,
    )


def body_of(number: int) -> str:
    return f"message {number} of the lab"


class _Writer:
    """Writes messages until it is killed, at the first chance after the experiment's number of messages."""

    def __init__(self, directory: Path, experiment: Experiment):
        if not (directory / MARK).is_file() or (directory / "store").exists():
            raise MisuseError(f"{directory} is no fresh crash lab")
        self._experiment, self._written = experiment, 0
        disk = LabDisk(directory / "synced", self._kill_at)
        self._store = MessageStore(settings(directory / "store", experiment.flush), disk=disk)

    def _kill_at(self, point: str, file: Path | None = None) -> None:
        if point == self._experiment.point and self._written >= self._experiment.messages:
            _report({"killed": file.name if file is not None else ""})
            os.kill(os.getpid(), signal.SIGKILL)

    def write(self) -> None:
        store = self._store
        store.open()
        store.start()
        go_on = store.index.next_file

        def next_index_file() -> None:
            # The dispatch kernel stops here when a record has its unit and the index file has no room for its
            # keys.
            self._kill_at("queue-index")
            go_on()

        store.index.next_file = next_index_file  # type: ignore[method-assign]  # only of this store
        until = time.monotonic() + WRITE_SECONDS
        for number in itertools.count():
            if time.monotonic() > until:
                break
            _report({"sent": number})
            self._kill_at("before-copy")
            queue_id = number % QUEUES
            pairs = {"UNIQ_KEY": f"{number:032X}", "KEYS": f"n{number} every{number % 10}"}
            result = store.appender.put(
                Message(
                    TOPIC,
                    queue_id,
                    body_of(number).encode(),
                    properties.encode(pairs),
                    born_timestamp=int(time.time() * 1000),
                )
            )
            if not result.ok:
                raise MisuseError(f"message {number} was answered {result.status.name}")
            self._written = number + 1
            self._kill_at("after-copy")
            self._until_confirmed(result.log_end)
            _report(
                {
                    "stored": number,
                    "queue_id": queue_id,
                    "queue_offset": result.queue_offset,
                    "log_offset": result.log_offset,
                }
            )
            store.tick()
            time.sleep(_PAUSE_S)

    def _until_confirmed(self, log_end: int) -> None:
        """Wait until the message is acknowledged: with SYNC_FLUSH that is after a sync."""
        answers: list[PutStatus] = []
        self._store.confirmation.when_confirmed(log_end, answers.append)
        while not answers:
            self._store.tick()
            time.sleep(0.0002)
        if answers[0] is not PutStatus.PUT_OK:
            raise MisuseError(f"the answer was {answers[0].name}")


def _report(line: dict) -> None:
    """Write a line to the pipe, which keeps it when the writer dies."""
    os.write(1, json.dumps(line).encode() + b"\n")


if __name__ == "__main__":
    _Writer(Path(sys.argv[1]), Experiment(**json.loads(sys.argv[2]))).write()
