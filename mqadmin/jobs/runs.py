"""The functions that a worker runs, one for each kind of job.

No job opens the store for writing. To change something, a job sends a request to the running broker, over its
Unix socket. A job that needs the store's files or Spark runs a management command in a process of its own.
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from django.conf import settings
from django.db import DatabaseError
from rq import get_current_job

from broker_store.check.results import CheckResult
from broker_store.client import ClientError
from broker_store.engine.status.store_state import RebuildProgress
from broker_store.errors import MisuseError
from broker_store.facts.starts import StartReport
from broker_store.lab.experiment import Outcome
from broker_store.rest.problems import Problem
from broker_store.units import Document, Fact, fact_of
from mqadmin.jobs import backups, dead_letters, exports, pipeline
from mqadmin.jobs.facts import BackupMade, DryRun, Exported, JobProgress, Resent, Summary
from mqadmin.jobs.left_out import LeftOut
from mqadmin.jobs.progress import INTERVAL_SECONDS, JobFailed, Progress
from mqadmin.jobs.progress import read as progress_of
from mqadmin.process import children, run_file
from mqadmin.process.recovery_paths import without_path
from mqadmin.process.rest_client import RestClient, segment

KEEP_SECONDS = 14 * 24 * 3600  # results and failures stay readable that long
MAX_STDERR_BYTES = 16_000  # of the end of a child's standard error that are read


def data_directory() -> Path:
    return Path(settings.DATA_DIRECTORY)


def check_store() -> CheckResult:
    """Verify the whole store, up to where it is dispatched when a broker runs on it."""
    return _run_command(
        CheckResult,
        "check_store",
        str(run_file.store_directory(data_directory())),
        "--plan",
        "--progress",
        "--json",
        allow=(0, 1),
    )


def dry_run(accept_damage: bool) -> DryRun:
    """Make all steps of a start without writing. Its record is kept with those of starts; the result has its
    main facts."""
    more = ("--accept-damage",) if accept_damage else ()
    found = _run_command(
        StartReport,
        "store",
        "dry-run",
        "--store",
        str(run_file.store_directory(data_directory())),
        "--keep",
        "--progress",
        *more,
    )
    shown: StartReport = without_path(found, run_file.store_directory(data_directory()))
    return DryRun(
        recovery=shown.id,
        state=shown.state,
        kind=shown.kind,
        took_ms=shown.took_ms,
        scanned_bytes=shown.scanned_bytes,
        messages=shown.messages,
        cut_bytes=shown.cut_bytes,
        redispatched=shown.redispatched,
        log_end=shown.log_end,
        error=shown.error,
        findings=len(shown.findings),
    )


def crash_lab(point: str, flush: str, power_cut: str, messages: int, seed: int) -> Outcome:
    """Kill a writer of the lab's own store at a point, start that store again, and report which messages are
    lost and which are there."""
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
    name = job.id if job else "run"
    return _run_command(Outcome, "crash_lab", *arguments, "--run", name, "--slowly", "--progress")


def rebuild_index() -> Document:
    """Make the broker write its index files again from the commit log, beside the old ones. Return the last
    state of the rebuild, as REST gives it.
    """
    progress = Progress()
    with RestClient.of_data_directory(data_directory()) as broker:
        broker.post("/store/index/rebuild")
        try:
            while True:
                document = broker.get("/store/index/rebuild")
                now = fact_of(RebuildProgress, document)
                done, total, is_last = now.done_bytes, now.total_bytes, now.state != "running"
                progress("reading the commit log", done, total, "bytes", last=is_last)
                if now.state == "done":
                    return document
                if now.state != "running":
                    raise JobFailed(f"the rebuild did not finish: {now.error or now.state}")
                time.sleep(INTERVAL_SECONDS)
        except JobFailed:
            raise
        except BaseException:
            # Also the job's time limit, which is raised at any point: the broker must not go on without it
            broker.delete("/store/index/rebuild")
            raise


def export_messages(topic: str, begin_ms: int | None, end_ms: int | None, form: str, limit: int) -> Exported:
    """Write the messages of a topic to a file of the exports directory, oldest first, queue after queue."""
    job = get_current_job()
    directory = data_directory() / "exports"
    directory.mkdir(mode=0o700, exist_ok=True)
    exports.remove_old(directory, time.time() - KEEP_SECONDS)
    with RestClient.of_data_directory(data_directory()) as broker:
        messages = exports.messages_of_topic(broker, segment(topic), begin_ms, end_ms, limit)
        name = job.id if job else "export"
        return exports.write(directory, name, form, messages, Progress(job), limit)


def back_up(keep: int, max_mb_s: int, copy_log: bool) -> BackupMade:
    """Make a backup in the directory of backups, and remove older ones beyond `keep`."""
    try:
        root = backups.directory()
    except Problem as problem:
        raise JobFailed(f"{problem}; {problem.hint}") from None
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    backups.remove_abandoned(root, time.time())
    target = root / backups.new_name(time.time())
    given = backups.BackupArguments(keep=keep, max_mb_s=max_mb_s, copy_log=copy_log)
    try:
        made = _run_command(BackupMade, *backups.arguments(target, data_directory(), given))
    except JobFailed as error:
        backups.remove_unfinished(target)
        raise JobFailed(
            pipeline.without_paths(f"{error}", data_directory(), run_file.store_directory(data_directory()))
        ) from None
    except BaseException:
        # Also the job's time limit, which is raised at any point
        backups.remove_unfinished(target)
        raise
    return replace(made, backup=target.name)


def resend_dead_letters(group: str, to: str, limit: int) -> Resent:
    """Send a group's dead letters again, those that were not sent again yet."""
    run = run_file.read(data_directory())
    if run is None or not run.nameserver:
        raise JobFailed(
            "this broker runs without a name server of its own, which the job's client needs to find it"
        )
    progress, sent_so_far = Progress(), 0

    def report(done: int, of: int) -> None:
        nonlocal sent_so_far
        sent_so_far = done
        progress("sending", done, of, "messages")

    try:
        credentials = run_file.own_credentials(data_directory())
        tls = run_file.tls_of(run)
        sent = asyncio.run(
            dead_letters.resend(run.nameserver, group, to, limit, report, LeftOut(group), credentials, tls)
        )
    except (ClientError, MisuseError) as error:
        before = f"; {sent_so_far:,} were sent before it, and are not sent again" if sent_so_far else ""
        raise JobFailed(f"{error}{before}") from None
    except DatabaseError as error:
        raise JobFailed(
            f"the database failed: {error}; {sent_so_far:,} were sent before it, and the next run "
            f"may send up to {dead_letters.LETTERS_PER_PULL} others once more"
        ) from None
    progress("done", 1, 1, last=True)
    return sent


def run_pipeline(name: str, **parameters: object) -> Summary:
    """Run a job of the pipeline in a process of its own: a JVM that fails ends neither the worker nor the
    broker. The whole result goes to a file; the job's result is its summary."""
    job, data = get_current_job(), data_directory()
    run, store = job.id if job else "run", run_file.store_directory(data)
    pipeline.prepare(data, KEEP_SECONDS)
    try:
        with pipeline.open_log(data, run) as log:
            _install_pipeline()
            arguments = pipeline.arguments(name, parameters, data, store)
            result = _run_command(pipeline.RESULTS[name], *arguments, allow=(0, 1), log=log)
    except JobFailed as error:
        raise JobFailed(pipeline.without_paths(f"{error}", data, store)) from None
    finally:
        pipeline.cut_log(data, run)
    pipeline.write_result(data, run, result)
    return pipeline.summary(result)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A line that a command prints: its progress, or its result."""

    progress: JobProgress | None
    result: dict[str, Any] | None


def _line_of(text: bytes) -> _Line:
    """Return the content of a line that a command printed; empty for another line, such as one of a
    library."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        return _Line(progress=None, result=None)
    result = value.get("result")
    return _Line(
        progress=progress_of(value.get("progress")), result=result if isinstance(result, dict) else None
    )


def _run_command(
    kind: type[Fact], *arguments: str, allow: tuple[int, ...] = (0,), log: IO[bytes] | None = None
) -> Fact:
    """Return the result, of this type, of a management command as a child process. Its standard output is
    lines of JSON, {"progress": ...} and at last {"result": ...}.

    Its steps and its standard error are added to `log`. Raises JobFailed for an exit status that is not in
    `allow`, or without a result.
    """
    command = [sys.executable, str(settings.BASE_DIRECTORY / "manage.py"), *arguments]
    progress, result, logged = Progress(), None, None
    with _Child(command, log) as child:
        for line in map(_line_of, child.stdout):
            step = line.progress
            if step is not None:
                progress(step.text, step.done, step.total, step.unit, running=step.running)
                if log is not None and step.text != logged:
                    logged = step.text
                    log.write(f"{time.strftime('%H:%M:%S', time.gmtime())} {step.text}\n".encode())
            elif line.result is not None:
                result = line.result
                progress("done", 1, 1, last=True)
        errors = child.stderr_tail()
        status = child.process.wait()
    if status not in allow or result is None:
        raise JobFailed(pipeline.sentence_of(errors, status))
    return fact_of(kind, result)


class _Child:
    """A process of this job's group: `with _Child(command) as child`. It is ended at the end of the block, or
    when this process ends."""

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
    """Install the Spark block of requirements.txt if it is missing: `make run` leaves it out, since it has
    450 MB."""
    if importlib.util.find_spec("pyspark") is not None:
        return
    Progress()("installing Spark from requirements.txt (about 450 MB), only this first time", last=True)
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
