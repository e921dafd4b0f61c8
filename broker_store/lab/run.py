"""The crash lab: a store of its own is written, killed at a chosen point and started again, to show the
effect.

    run ──► child: writes messages, reports what it sent and what was acknowledged ──► SIGKILL at the point
      └──► power cut, if requested: pages and names that were not synced are lost
      └──► recovery, as at any start, in steps that can be watched
      └──► comparison of what was acknowledged with what is there; check_store

The real store is safe, because the lab is never given a store. It creates `DATA/lab/RUN/store` in a directory
that it marks as its own, refuses a directory that existed before, and removes only directories with its mark
(docs/decisions/0033-the-crash-lab-makes-its-own-store.md).
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from broker_store.check.report import CheckReport
from broker_store.check.walk import check_store
from broker_store.engine.start.report import RecoveryReport
from broker_store.engine.start.start_records import StartRecords
from broker_store.engine.store import MessageStore
from broker_store.errors import MisuseError
from broker_store.formats import record
from broker_store.lab.disk import cut_power
from broker_store.lab.experiment import POINTS, Experiment, LostMessage, Outcome
from broker_store.lab.writer import MARK, WRITE_SECONDS, body_of, settings
from broker_store.messages import GetRequest, GetStatus

DIRECTORY = "lab"
RUNS_KEPT = 3
MAX_LOST_LISTED = 50


def run(
    data: Path,
    name: str,
    experiment: Experiment,
    on_progress: Callable[[str], None] = lambda text: None,
    pause_s: float = 0.0,
) -> Outcome:
    """Run an experiment and return its outcome. `pause_s` between the steps of recovery makes them
    visible."""
    directory = _make_room(data, name)
    root = directory / "store"
    on_progress("writing messages")
    reports, killed = _write_until_killed(directory, experiment)
    if experiment.power_cut != "no":
        on_progress("the power is cut")
        cut_power(root, directory / "synced", experiment)
    on_progress("starting again")
    store = MessageStore(
        settings(root, experiment.flush),
        records=StartRecords(data / "recoveries", root, every_s=0.05),
        purpose="lab",
    )
    store.open(_watched(on_progress, pause_s))
    try:
        found = _bodies(store)
    finally:
        store.close()
    on_progress("checking the store")
    checked = check_store(root, settings(root, experiment.flush))
    return _outcome(
        experiment, reports, killed, found, store.report.as_dict()["id"], checked, f"{DIRECTORY}/{name}/store"
    )


def _make_room(data: Path, name: str) -> Path:
    """Create a new directory with the mark, and remove the oldest runs."""
    top = data.absolute() / DIRECTORY
    top.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory = top / name
    if top.is_symlink() or directory.parent != top or not name or name.startswith("."):
        raise MisuseError(f"{directory} is no place for a crash lab")
    directory.mkdir(mode=0o700)  # FileExistsError: the lab uses no directory that existed before
    (directory / MARK).touch()
    runs = sorted(
        (path for path in top.iterdir() if not path.is_symlink() and (path / MARK).is_file()),
        key=lambda path: path.stat().st_mtime_ns,
    )
    for old in [path for path in runs if path != directory][: max(0, len(runs) - RUNS_KEPT)]:
        shutil.rmtree(old)
    return directory


def _write_until_killed(directory: Path, experiment: Experiment) -> tuple[list[dict], dict]:
    """Return the child's reports on each message, and the one on its end."""
    command = [sys.executable, "-m", "broker_store.lab.writer", str(directory), json.dumps(vars(experiment))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as child:
        try:
            lines, _ = child.communicate(timeout=WRITE_SECONDS + 60)
        except subprocess.TimeoutExpired:
            child.kill()
            raise MisuseError("the writer did not come to the point in time") from None
    reports = [json.loads(line) for line in lines.splitlines()]
    killed = next((line for line in reports if "killed" in line), None)
    if child.returncode != -signal.SIGKILL or killed is None:
        raise MisuseError(
            f"the writer ended with {child.returncode} before it came to the point {experiment.point}"
        )
    return reports, killed


def _watched(on_progress: Callable[[str], None], pause_s: float) -> Callable[[RecoveryReport], None]:
    shown = 0

    def on_step(report: RecoveryReport) -> None:
        nonlocal shown
        if len(report.steps) > shown:
            shown = len(report.steps)
            on_progress(f"starting again: {report.steps[-1].name}")
            time.sleep(pause_s)

    return on_step


def _bodies(store: MessageStore) -> dict[str, tuple[int, int, int]]:
    """Return {body: (queue, its offset, log offset)} of all messages that can be read."""
    found = {}
    for topic, queue_id in store.queues():
        at = store.reads.min_offset(topic, queue_id)
        while at < store.reads.max_offset(topic, queue_id):
            result = store.reads.get_blocking(GetRequest(topic, queue_id, at, 32))
            if result.status is not GetStatus.FOUND:
                break
            for message in record.decode_all(result.body):
                found[message.body.decode()] = (queue_id, message.queue_offset, message.log_offset)
            at = result.next_offset
    return found


def _outcome(
    experiment: Experiment,
    reports: list[dict],
    killed: dict,
    found: dict,
    recovery: str,
    checked: CheckReport,
    store: str,
) -> Outcome:
    sent = [line["sent"] for line in reports if "sent" in line]
    stored = {line["stored"]: line for line in reports if "stored" in line}
    lost = [
        line
        for number, line in stored.items()
        if found.get(body_of(number)) != (line["queue_id"], line["queue_offset"], line["log_offset"])
    ]
    extra = [number for number in sent if number not in stored and body_of(number) in found]
    may_lose = experiment.flush == "ASYNC_FLUSH" and experiment.power_cut != "no"
    return Outcome(
        **vars(experiment),
        killed=POINTS[experiment.point],
        killed_in=killed["killed"] or None,
        recovery=recovery,
        sent=len(sent),
        acknowledged=len(stored),
        there=len(found),
        lost=len(lost),
        there_unacknowledged=len(extra),
        kept_its_word=may_lose or not lost,
        sentence=_sentence(len(lost), len(extra), may_lose),
        check_ok=checked.ok,
        check_findings=len(checked.findings),
        lost_messages=[
            LostMessage(
                message=line["stored"],
                queue_id=line["queue_id"],
                offset=line["queue_offset"],
                log_offset=line["log_offset"],
            )
            for line in lost[:MAX_LOST_LISTED]
        ],
        store=store,
    )


def _sentence(lost: int, extra: int, may_lose: bool) -> str:
    if lost and may_lose:
        first = (
            f"{_lost_words(lost)} gone: with ASYNC_FLUSH an answer does not wait for the "
            f"disk, and the power cut took what had not been synced."
        )
    elif lost:
        first = f"{_lost_words(lost)} gone, and that must not be."
    else:
        first = "All that was acknowledged is there."
    if extra == 1:
        return (
            first + " 1 message is there although its send was not answered: its sender would send it again."
        )
    return first + (
        f" {extra} messages are there although their sends were not answered: their senders would "
        f"send them again."
        if extra
        else ""
    )


def _lost_words(count: int) -> str:
    return (
        "1 message that was acknowledged is" if count == 1 else f"{count} messages that were acknowledged are"
    )
