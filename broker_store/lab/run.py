"""The crash lab: a store of its own is written to, killed at a chosen point, and started again, to see what
that does.

    run ──► child: writes messages, tells what it sent and what was acknowledged ──► SIGKILL at the point
      └──► power cut, when one is asked for: pages and names that were not synced are lost
      └──► recovery, as any start, in steps that can be watched
      └──► what was acknowledged and what is there; check_store

The real store cannot come to harm: the lab is never given a store. It makes `DATA/lab/RUN/store` below a
directory that it marks as its own, refuses to use one that was there before, and removes only what bears its
mark (docs/decisions/0033-the-crash-lab-makes-its-own-store.md).
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

from broker_store.check.walk import check_store
from broker_store.engine.start.report import RecoveryReport
from broker_store.engine.start.start_records import StartRecords
from broker_store.engine.store import MessageStore
from broker_store.errors import MisuseError
from broker_store.formats import record
from broker_store.lab.disk import cut_power
from broker_store.lab.experiment import POINTS, Experiment
from broker_store.lab.writer import MARK, WRITE_SECONDS, body_of, settings
from broker_store.messages import GetRequest, GetStatus

DIRECTORY = "lab"
RUNS_KEPT = 3
LOST_TOLD = 50


def run(
    data: Path,
    name: str,
    experiment: Experiment,
    tell: Callable[[str], None] = lambda text: None,
    pause_s: float = 0.0,
) -> dict:
    """Do it, and say what came of it. `pause_s` between the steps of recovery lets people watch."""
    directory = _make_room(data, name)
    root = directory / "store"
    tell("writing messages")
    told, killed = _write_until_killed(directory, experiment)
    if experiment.power_cut != "no":
        tell("the power is cut")
        cut_power(root, directory / "synced", experiment)
    tell("starting again")
    store = MessageStore(
        settings(root, experiment.flush),
        records=StartRecords(data / "recoveries", root, every_s=0.05),
        purpose="lab",
    )
    store.open(_watched(tell, pause_s))
    try:
        found = _bodies(store)
    finally:
        store.close()
    tell("checking the store")
    checked = check_store(root, settings(root, experiment.flush))
    return _outcome(experiment, told, killed, found, store.recovery_report()["id"], checked) | {
        "store": f"{DIRECTORY}/{name}/store"
    }


def _make_room(data: Path, name: str) -> Path:
    """A fresh directory that bears the mark; the oldest runs go."""
    top = data.absolute() / DIRECTORY
    top.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory = top / name
    if top.is_symlink() or directory.parent != top or not name or name.startswith("."):
        raise MisuseError(f"{directory} is no place for a crash lab")
    directory.mkdir(mode=0o700)  # FileExistsError: what was there before is not ours
    (directory / MARK).touch()
    runs = sorted(
        (path for path in top.iterdir() if not path.is_symlink() and (path / MARK).is_file()),
        key=lambda path: path.stat().st_mtime_ns,
    )
    for old in [path for path in runs if path != directory][: max(0, len(runs) - RUNS_KEPT)]:
        shutil.rmtree(old)
    return directory


def _write_until_killed(directory: Path, experiment: Experiment) -> tuple[list[dict], dict | None]:
    """What the child told of each message, and of its end."""
    command = [sys.executable, "-m", "broker_store.lab.writer", str(directory), json.dumps(vars(experiment))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as child:
        try:
            lines, _ = child.communicate(timeout=WRITE_SECONDS + 60)
        except subprocess.TimeoutExpired:
            child.kill()
            raise MisuseError("the writer did not come to the point in time") from None
    told = [json.loads(line) for line in lines.splitlines()]
    killed = next((line for line in told if "killed" in line), None)
    if child.returncode != -signal.SIGKILL or killed is None:
        raise MisuseError(
            f"the writer ended with {child.returncode} before it came to the point {experiment.point}"
        )
    return told, killed


def _watched(tell: Callable[[str], None], pause_s: float) -> Callable[[RecoveryReport], None]:
    told = 0

    def on_step(report: RecoveryReport) -> None:
        nonlocal told
        if len(report.steps) > told:
            told = len(report.steps)
            tell(f"starting again: {report.steps[-1].name}")
            time.sleep(pause_s)

    return on_step


def _bodies(store: MessageStore) -> dict[str, tuple[int, int, int]]:
    """{body: (queue, its offset, log offset)} of all that can be read."""
    found = {}
    for topic, queue_id in store.queues():
        at = store.min_offset(topic, queue_id)
        while at < store.max_offset(topic, queue_id):
            result = store.get_blocking(GetRequest(topic, queue_id, at, 32))
            if result.status is not GetStatus.FOUND:
                break
            for message in record.decode_all(result.body):
                found[message.body.decode()] = (queue_id, message.queue_offset, message.log_offset)
            at = result.next_offset
    return found


def _outcome(
    experiment: Experiment, told: list[dict], killed: dict, found: dict, recovery: str, checked
) -> dict:
    sent = [line["sent"] for line in told if "sent" in line]
    stored = {line["stored"]: line for line in told if "stored" in line}
    lost = [
        line
        for number, line in stored.items()
        if found.get(body_of(number)) != (line["queue_id"], line["queue_offset"], line["log_offset"])
    ]
    extra = [number for number in sent if number not in stored and body_of(number) in found]
    may_lose = experiment.flush == "ASYNC_FLUSH" and experiment.power_cut != "no"
    return {
        **vars(experiment),
        "killed": POINTS[experiment.point],
        "killed_in": killed["killed"] or None,
        "recovery": recovery,
        "sent": len(sent),
        "acknowledged": len(stored),
        "there": len(found),
        "lost": len(lost),
        "there_unacknowledged": len(extra),
        "kept_its_word": may_lose or not lost,
        "sentence": _sentence(len(lost), len(extra), may_lose),
        "check_ok": checked.ok,
        "check_findings": len(checked.findings),
        "lost_messages": [
            {
                "message": line["stored"],
                "queue_id": line["queue_id"],
                "offset": line["queue_offset"],
                "log_offset": line["log_offset"],
            }
            for line in lost[:LOST_TOLD]
        ],
    }


def _sentence(lost: int, extra: int, may_lose: bool) -> str:
    if lost and may_lose:
        first = (
            f"{_that_were_acknowledged(lost)} gone: with ASYNC_FLUSH an answer does not wait for the "
            f"disk, and the power cut took what had not been synced."
        )
    elif lost:
        first = f"{_that_were_acknowledged(lost)} gone, and that must not be."
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


def _that_were_acknowledged(count: int) -> str:
    return (
        "1 message that was acknowledged is" if count == 1 else f"{count} messages that were acknowledged are"
    )
