"""What a worker runs: one function for each kind of job.

No job opens the store for writing. What must be changed, a job asks the running broker for, over its Unix
socket. What needs the store or Spark runs as a management command in a process of its own.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

from django.conf import settings
from django.db import DatabaseError
from rq import get_current_job

from broker_store.client import ClientError
from broker_store.errors import MisuseError
from broker_store.units import document_of
from mqadmin.jobs import dead_letters, exports, pipeline
from mqadmin.jobs.left_out import LeftOut
from mqadmin.jobs.parameters import whole
from mqadmin.jobs.progress import INTERVAL_SECONDS, JobFailed, Progress
from mqadmin.process import children, run_file
from mqadmin.process.recovery_paths import without_path
from mqadmin.process.rest_client import RestClient, segment

KEEP_SECONDS = 14 * 24 * 3600  # results and failures stay readable that long
MAX_STDERR_BYTES = 16_000  # read of what a child said, from its end
DRY_RUN_FACTS = (
    "state",
    "kind",
    "took_ms",
    "scanned_bytes",
    "messages",
    "cut_bytes",
    "redispatched",
    "log_end",
    "error",
)


def data_directory() -> Path:
    return Path(settings.DATA_DIRECTORY)


def check_store() -> dict[str, Any]:
    """Verify the whole store, up to where it is dispatched when a broker runs on it."""
    found = _run_command(
        "check_store",
        str(run_file.store_directory(data_directory())),
        "--plan",
        "--progress",
        "--json",
        allow=(0, 1),
    )
    for part in (found, found.get("plan", {})):
        part.pop("store", None)  # its path on the disk is not for all who see jobs
    return found


def dry_run(accept_damage: bool) -> dict[str, Any]:
    """Do all of a start but its writes. Its record stands beside those of starts; the result has its main
    facts."""
    more = ("--accept-damage",) if accept_damage else ()
    found = _run_command(
        "store",
        "dry-run",
        "--store",
        str(run_file.store_directory(data_directory())),
        "--keep",
        "--progress",
        *more,
    )
    shown = without_path(found, run_file.store_directory(data_directory()))
    return {
        "recovery": found["id"],
        **{name: shown[name] for name in DRY_RUN_FACTS},
        "findings": len(found["findings"]),
    }


def crash_lab(point: str, flush: str, power_cut: str, messages: int, seed: int) -> dict[str, Any]:
    """Kill a writer of the lab's own store at a point, start that store again, and report what is lost and
    what is there."""
    job = get_current_job()
    arguments = [
        point,
        "--flush",
        flush,
        "--power-cut",
        power_cut,
        "--messages",
        str(messages),
        "--seed",
        str(seed),
    ]
    return _run_command("crash_lab", *arguments, "--run", job.id if job else "run", "--slowly", "--progress")


def rebuild_index() -> dict[str, Any]:
    """Have the broker write its index files again from the commit log; it makes them beside the old ones."""
    progress = Progress()
    with RestClient.of_data_directory(data_directory()) as broker:
        broker.post("/store/index/rebuild")
        try:
            while True:
                status = broker.get("/store/index/rebuild")
                done, total = whole(status.get("done_bytes")), whole(status.get("total_bytes"))
                progress("reading the commit log", done, total, "bytes", last=status["state"] != "running")
                if status["state"] == "done":
                    return status
                if status["state"] != "running":
                    raise JobFailed(f"the broker says: {status.get('error') or status['state']}")
                time.sleep(INTERVAL_SECONDS)
        except JobFailed:
            raise
        except BaseException:
            # Also the job's time limit, which is raised at any point: the broker must not go on without it
            broker.delete("/store/index/rebuild")
            raise


def export_messages(
    topic: str, begin_ms: int | None, end_ms: int | None, form: str, limit: int
) -> dict[str, Any]:
    """Write the messages of a topic to a file of the exports directory, oldest first, queue after queue."""
    job = get_current_job()
    directory = data_directory() / "exports"
    directory.mkdir(mode=0o700, exist_ok=True)
    exports.remove_old(directory, time.time() - KEEP_SECONDS)
    with RestClient.of_data_directory(data_directory()) as broker:
        messages = exports.messages_of_topic(broker, segment(topic), begin_ms, end_ms, limit)
        name = job.id if job else "export"
        return document_of(exports.write(directory, name, form, messages, Progress(job), limit))


def resend_dead_letters(group: str, to: str, limit: int) -> dict[str, Any]:
    """Send a group's dead letters again, those that were not sent again yet."""
    nameserver = (run_file.read(data_directory()) or {}).get("nameserver")
    if not nameserver:
        raise JobFailed(
            "this broker runs without a name server of its own, by which the job's client would find it"
        )
    progress, sent_so_far = Progress(), 0

    def report(done: int, of: int) -> None:
        nonlocal sent_so_far
        sent_so_far = done
        progress("sending", done, of, "messages")

    try:
        sent = asyncio.run(dead_letters.resend(nameserver, group, to, limit, report, LeftOut(group)))
    except (ClientError, MisuseError) as error:
        before = f"; {sent_so_far:,} were sent before it, and are not sent again" if sent_so_far else ""
        raise JobFailed(f"{error}{before}") from None
    except DatabaseError as error:
        raise JobFailed(
            f"the database failed: {error}; {sent_so_far:,} were sent before it, and the next run "
            f"may send up to {dead_letters.LETTERS_PER_PULL} others once more"
        ) from None
    progress("done", 1, 1, last=True)
    return document_of(sent)


def run_pipeline(name: str, **parameters: object) -> dict[str, Any]:
    """Run a job of the pipeline in a process of its own: a JVM that fails ends neither the worker nor the
    broker. The whole result goes to a file; the job's result is its summary."""
    job, data = get_current_job(), data_directory()
    run, store = job.id if job else "run", run_file.store_directory(data)
    pipeline.prepare(data, KEEP_SECONDS)
    try:
        with pipeline.open_log(data, run) as log:
            _install_pipeline()
            result = _run_command(*pipeline.arguments(name, parameters, data, store), allow=(0, 1), log=log)
    except JobFailed as error:
        raise JobFailed(pipeline.without_paths(f"{error}", data, store)) from None
    finally:
        pipeline.cut_log(data, run)
    pipeline.write_result(data, run, result)
    return pipeline.summary(name, result)


def _run_command(
    *arguments: str, allow: tuple[int, ...] = (0,), log: IO[bytes] | None = None
) -> dict[str, Any]:
    """The result of a management command as a child process. Its standard output is lines of JSON,
    {"progress": ...} and at last {"result": ...}.

    Its steps and its standard error are added to `log`. Raises JobFailed for an exit status that is not in
    `allow`, or without a result.
    """
    command = [sys.executable, str(settings.BASE_DIRECTORY / "manage.py"), *arguments]
    progress, result, logged = Progress(), None, None
    with _Child(command, log) as child:
        for line in child.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # a library that prints
            if isinstance(event, dict) and "progress" in event:
                step = event["progress"]
                text = str(step.get("text", ""))
                progress(
                    text,
                    step.get("done"),
                    step.get("total"),
                    str(step.get("unit", "")),
                    running=step.get("running"),
                )
                if log is not None and text != logged:
                    logged = text
                    log.write(f"{time.strftime('%H:%M:%S', time.gmtime())} {text}\n".encode())
            elif isinstance(event, dict) and "result" in event:
                result = event["result"]
                progress("done", 1, 1, last=True)
        errors = child.stderr_tail()
        status = child.process.wait()
    if status not in allow or result is None:
        raise JobFailed(pipeline.sentence_of(errors, status))
    return result


class _Child:
    """`with _Child(command) as child`: a process of this job's group, ended with the block or with this
    process."""

    def __init__(self, command: list[str], log: IO[bytes] | None = None):
        # A file has room for any amount; a pipe would need a second thread that reads it
        self._errors = (
            open(log.name, "a+b", buffering=0) if log is not None else open(os.memfd_create("stderr"), "w+b")
        )
        self._begin = self._errors.seek(0, os.SEEK_END)
        launched = children.launched(command, signal.SIGKILL)
        self.process = subprocess.Popen(
            launched, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._errors
        )
        assert self.process.stdout is not None  # it is a pipe
        self.stdout = self.process.stdout

    def __enter__(self) -> _Child:
        return self

    def stderr_tail(self) -> str:
        length = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(self._begin, length - MAX_STDERR_BYTES))
        return self._errors.read().decode("utf-8", "replace").strip()

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(2)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        self.stdout.close()
        self._errors.close()


def _install_pipeline() -> None:
    """Install the Spark block of requirements.txt when it is not there: `make run` leaves it out, it is 450
    MB."""
    if importlib.util.find_spec("pyspark") is not None:
        return
    Progress()("installing Spark from requirements.txt (about 450 MB), this once", last=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "-q",
        "-r",
        str(settings.BASE_DIRECTORY / "requirements.txt"),
    ]
    with _Child(command) as child:
        status = child.process.wait()
        if status != 0:
            raise JobFailed(
                f"Spark could not be installed (pip ended with {status}): "
                f"{child.stderr_tail()[-1000:]}; or run: make pipeline"
            )
    importlib.invalidate_caches()
