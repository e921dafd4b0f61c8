"""Background jobs over django-rq: what may run, who started it, how far it is, how to stop it.

Whoever can write to Redis must not be able to run code here (docs/durability.md S21): payloads are JSON,
never pickle, whatever the command line says, a job's function is looked up in KINDS and imported from
nowhere, and its parameters are checked once more by the worker that runs it.

A job runs in a process that the worker forks, so stopping one is a signal to that process's group, and what
the job started (a Spark job's JVM) ends with it. Jobs never open the store for writing: what must be changed,
they ask the running broker for, over its Unix socket.

Progress is in the job's meta, written at most four times a second: {"text", "done", "total", "running",
"unit", "at_ms", "steps"}, where `steps` are {"text", "began_ms"} of all that it did so far.
"""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import redis
from django.conf import settings
from django.db import DatabaseError
from rq import Worker, get_current_job, serializers
from rq.command import send_stop_job_command
from rq.exceptions import DeserializationError, InvalidJobOperation, NoSuchJobError
from rq.job import Job, JobStatus
from rq.registry import StartedJobRegistry
from rq.serializers import JSONSerializer

from broker_store.client import ClientError
from broker_store.errors import LookupNameError, MisuseError, NameError_
from broker_store.formats import moment, names
from broker_store.lab.experiment import MAX_MESSAGES, Experiment
from broker_store.rest.callers import Caller
from broker_store.rest.documents import time_text
from broker_store.rest.problems import Problem
from mqadmin import dead_letters, exports, pipeline
from mqadmin.left_out import LeftOut
from mqadmin.process import children, run_file
from mqadmin.process.recovery_paths import without_paths
from mqadmin.process.rest_client import RestClient, segment

# Where rq is not told how to read a job it reads pickles; django-rq does not tell it when it stops jobs,
# deletes the failed ones or shows a worker's.
serializers.PickleSerializer = JSONSerializer  # type: ignore[assignment]  # on purpose

KEEP_SECONDS = 14 * 24 * 3600  # results and failures stay readable that long
MAX_LISTED = 200  # newest jobs of each queue and state
# Jobs that wait, of all queues: each holds its parameters and a row of every list until its turn comes.
MAX_WAITING = 100
MAX_WAITING_OF_USER = 20  # so that others find room
RESEND = "resend_dead_letters"  # the kind that dead letters have a page for
_NO_ROOM = "wait until some have run, or cancel some"
_starting = threading.Lock()  # counting and queueing are one step for the threads of requests
PROGRESS_INTERVAL_SECONDS = 0.25
JOB_ID = pipeline.RUN_ID
MAX_STEPS = 60  # kept in a job's progress
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Kind:
    """One allowed job. `takes` are the names of its parameters; `check` turns given ones, which it knows,
    into those the function gets."""

    function: Callable[..., Any]
    title: str
    queue: str
    role: str
    timeout_seconds: int
    takes: tuple[str, ...]
    check: Callable[[dict], dict]
    confirms: str = ""  # the parameter whose value must be typed once more, for what cannot be taken back
    # Raises for a run that could only fail; asked in the broker's process
    precondition: Callable[[dict], None] = lambda checked: None

    def run(self, *arguments: object, **parameters: object) -> dict:
        """What a worker calls: the parameters come from Redis, where they may have been changed since they
        were checked."""
        if arguments:
            raise JobFailed(f"{self.title} takes no arguments without a name")
        try:
            checked = self.check(parameters)
        except (Problem, NameError_) as problem:
            raise JobFailed(f"refused: {problem}") from None
        return self.function(**checked)


# What a worker runs


class AllowedJob(Job):
    """A job whose function comes from KINDS; what else its record in Redis may name is not run."""

    @property
    def kind(self) -> str | None:
        """The key in KINDS, None for a payload that is no job of this program."""
        try:
            name = str(self.func_name).removeprefix("mqadmin.jobs.")
        except DeserializationError:
            return None
        return name if name in KINDS else None

    @property
    def func(self) -> Callable[..., Any]:
        if self.kind is None:
            raise PermissionError(f"{self.func_name!r:.80} is not a job of this program")
        return KINDS[self.kind].run

    # Who stopped it and when has fields of its own in Redis: the meta is written by the running job, which
    # knows nothing of that.
    canceled_by: str | None = None
    canceled_ms: int | None = None

    def set_canceled_by(self, name: str, now_ms: int) -> None:
        self.canceled_by, self.canceled_ms = name, now_ms
        self.connection.hset(self.key, mapping={"canceled_by": name, "canceled_ms": now_ms})

    def restore(self, raw_data: dict) -> None:
        super().restore(raw_data)
        name, at = raw_data.get(b"canceled_by"), raw_data.get(b"canceled_ms", b"")
        self.canceled_by = None if name is None else name.decode("utf-8", "replace")
        self.canceled_ms = int(at) if at.isdigit() and len(at) < 17 else None

    # Callbacks are names of functions to import as well; this program has none.
    success_callback = failure_callback = stopped_callback = property(lambda self: None)

    def send_webhooks(self, status: str | JobStatus, *, exc_string: str | None = None) -> None:
        """None are sent: an address that stands in Redis may be any within this network."""


class JobWorker(Worker):
    """A worker that reads JSON alone and whose children end with it."""

    def __init__(self, *arguments: Any, **options: Any):
        options["serializer"] = JSONSerializer
        options["job_class"] = AllowedJob
        super().__init__(*arguments, **options)

    def main_work_horse(self, job: Job, queue: Any) -> None:
        end_with_parent()
        super().main_work_horse(job, queue)


def end_with_parent() -> None:
    """Have the kernel kill this process when the thread that forked it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Progress:
    """How far the current job is; outside a worker (a command, a test) nothing is written."""

    def __init__(self, job: Job | None = None):
        self._job = job if job is not None else get_current_job()
        self._written = 0.0
        self._steps: list[dict] = []

    def __call__(
        self,
        text: str,
        done: int | None = None,
        total: int | None = None,
        unit: str = "",
        *,
        running: int | None = None,
        last: bool = False,
    ) -> None:
        now, at_ms, text = time.monotonic(), int(time.time() * 1000), text[:300]
        if not self._steps or self._steps[-1]["text"] != text:
            self._steps = [*self._steps[1 - MAX_STEPS :], {"text": text, "began_ms": at_ms}]
        if self._job is None or (now - self._written < PROGRESS_INTERVAL_SECONDS and not last):
            return
        self._written = now
        self._job.meta["progress"] = {
            "text": text,
            "done": done,
            "total": total,
            "running": running,
            "unit": unit,
            "at_ms": at_ms,
            "steps": self._steps,
        }
        self._job.save_meta()


class JobFailed(Exception):
    """A job could not do its work; the message is for its reader."""


def data_directory() -> Path:
    return Path(settings.DATA_DIRECTORY)


def check_store() -> dict:
    """Walk the whole store and verify it, up to where it is dispatched when a broker is running on it."""
    found = _run_command(
        "check_store",
        str(run_file.store_directory(data_directory())),
        "--plan",
        "--progress",
        "--json",
        allow=(0, 1),
    )
    for part in (found, found.get("plan", {})):
        part.pop("store", None)  # where it lies on the disk is not for all who see jobs
    return found


def dry_run(accept_damage: bool) -> dict:
    """What would a start do now? Its record stands beside those of starts; the answer is what matters of
    it."""
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
    facts = (
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
    told = without_paths(found | {"store": str(run_file.store_directory(data_directory()))})
    return {
        "recovery": found["id"],
        **{name: told[name] for name in facts},
        "findings": len(found["findings"]),
    }


def crash_lab(point: str, flush: str, power_cut: str, messages: int, seed: int) -> dict:
    """Kill a writer of the lab's own store at a point, start that store again, and say what is lost and what
    is there."""
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


def rebuild_index() -> dict:
    """Have the broker write its index files anew from the commit log; it makes them beside the old ones."""
    progress = Progress()
    with RestClient.of_data_directory(data_directory()) as broker:
        broker.post("/store/index/rebuild")
        try:
            while True:
                status = broker.get("/store/index/rebuild")
                done, total = _whole(status.get("done_bytes")), _whole(status.get("total_bytes"))
                progress("reading the commit log", done, total, "bytes", last=status["state"] != "running")
                if status["state"] == "done":
                    return status
                if status["state"] != "running":
                    raise JobFailed(f"the broker says: {status.get('error') or status['state']}")
                time.sleep(PROGRESS_INTERVAL_SECONDS)
        except JobFailed:
            raise
        except BaseException:
            # Also a time limit of the job, raised in the middle of anything: what was asked for is called
            # off.
            broker.delete("/store/index/rebuild")
            raise


def export_messages(topic: str, begin_ms: int | None, end_ms: int | None, form: str, limit: int) -> dict:
    """Write the messages of a topic to a file of the exports directory, oldest first, queue after queue."""
    job = get_current_job()
    directory = data_directory() / "exports"
    directory.mkdir(mode=0o700, exist_ok=True)
    exports.remove_old(directory, time.time() - KEEP_SECONDS)
    with RestClient.of_data_directory(data_directory()) as broker:
        messages = exports.messages_of_topic(broker, segment(topic), begin_ms, end_ms, limit)
        return exports.write(directory, job.id if job else "export", form, messages, Progress(job), limit)


def resend_dead_letters(group: str, to: str, limit: int) -> dict:
    """Send a group's dead letters once more, those that were not sent again yet."""
    nameserver = (run_file.read(data_directory()) or {}).get("nameserver")
    if not nameserver:
        raise JobFailed(
            "this broker runs without a name server of its own, by which the job's client would find it"
        )
    progress, sent_so_far = Progress(), 0

    def tell(done: int, of: int) -> None:
        nonlocal sent_so_far
        sent_so_far = done
        progress("sending", done, of, "messages")

    try:
        sent = asyncio.run(dead_letters.resend(nameserver, group, to, limit, tell, LeftOut(group)))
    except (ClientError, MisuseError) as error:
        before = f"; {sent_so_far:,} were sent before it, and are not sent again" if sent_so_far else ""
        raise JobFailed(f"{error}{before}") from None
    except DatabaseError as error:
        raise JobFailed(
            f"the database failed: {error}; {sent_so_far:,} were sent before it, and the next run "
            f"may send up to {dead_letters.AT_ONCE} others once more"
        ) from None
    progress("done", 1, 1, last=True)
    return sent


def run_pipeline(name: str, **parameters: object) -> dict:
    """A job of the pipeline, in a process of its own: a JVM that fails takes neither the worker nor the
    broker along.

    The result goes to a file, the answer is its summary.
    """
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


def _run_command(*arguments: str, allow: tuple[int, ...] = (0,), log: IO[bytes] | None = None) -> dict:
    """A management command as a child process: its standard output is lines of JSON, {"progress": ...} and at
    last {"result": ...}.

    Steps and what the command says on its standard error are added to `log`.
    """
    command = [sys.executable, str(settings.BASE_DIRECTORY / "manage.py"), *arguments]
    progress, result, told = Progress(), None, None
    with _child(command, log) as child:
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
                if log is not None and text != told:
                    told = text
                    log.write(f"{time.strftime('%H:%M:%S', time.gmtime())} {text}\n".encode())
            elif isinstance(event, dict) and "result" in event:
                result = event["result"]
                progress("done", 1, 1, last=True)
        errors = child.stderr_tail()
        status = child.process.wait()
    if status not in allow or result is None:
        raise JobFailed(pipeline.sentence_of(errors, status))
    return result


class _child:
    """`with _child(command) as child`: a process of this job's group, ended with the block or with this
    process."""

    def __init__(self, command: list[str], log: IO[bytes] | None = None):
        # As long as it likes, without a second thread to read it.
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

    def __enter__(self) -> _child:
        return self

    def stderr_tail(self) -> str:
        length = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(self._begin, length - 16_000))
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
    with _child(command) as child:
        status = child.process.wait()
        if status != 0:
            raise JobFailed(
                f"Spark could not be installed (pip ended with {status}): "
                f"{child.stderr_tail()[-1000:]}; or run: make pipeline"
            )
    importlib.invalidate_caches()


# Which jobs there are


EXPORT_TAKES = ("topic", "begin_ms", "end_ms", "form", "limit")
RESEND_TAKES = ("group", "to", "limit")


def _check_nothing(parameters: dict) -> dict:
    pipeline.refuse_unknown("this job", parameters, ())
    return {}


def _check_dry_run(parameters: dict) -> dict:
    accept = parameters.get("accept_damage", False)
    if parameters.keys() - {"accept_damage"} or not isinstance(accept, bool):
        raise Problem("invalid", "this job has one parameter, accept_damage, true or false")
    return {"accept_damage": accept}


LAB_TAKES = ("point", "flush", "power_cut", "messages", "seed")


def _check_lab(parameters: dict) -> dict:
    pipeline.refuse_unknown("this job", parameters, LAB_TAKES)
    words = {name: parameters[name] for name in ("point", "flush", "power_cut") if name in parameters}
    messages = _bounded(parameters.get("messages", 200), "messages", 1, MAX_MESSAGES)
    seed = _bounded(parameters.get("seed", 1), "seed", 0, 1 << 31)
    try:
        return vars(Experiment(**{"point": "after-copy", **words}, messages=messages, seed=seed))
    except MisuseError as error:
        raise Problem("invalid", str(error)) from None


def _check_export(parameters: dict) -> dict:
    pipeline.refuse_unknown("this job", parameters, EXPORT_TAKES)
    form = parameters.get("form", "jsonl")
    if form not in exports.FORMS:
        raise Problem("invalid", f"form is {form!r:.30}, want one of {', '.join(exports.FORMS)}")
    topic = parameters.get("topic")
    if not isinstance(topic, str):
        raise Problem("invalid", "topic is missing")
    return {
        "topic": names.check_topic(topic),
        "begin_ms": _time(parameters, "begin_ms"),
        "end_ms": _time(parameters, "end_ms"),
        "form": form,
        "limit": _bounded(parameters.get("limit", exports.DEFAULT_LIMIT), "limit", 1, exports.MAX_MESSAGES),
    }


def _check_resend(parameters: dict) -> dict:
    pipeline.refuse_unknown("this job", parameters, RESEND_TAKES)
    group, to = parameters.get("group"), parameters.get("to", "group")
    if not isinstance(group, str):
        raise Problem("invalid", "group is missing")
    if to not in dead_letters.TO:
        raise Problem("invalid", f"to is {to!r:.30}, want one of {', '.join(dead_letters.TO)}")
    limit = _bounded(
        parameters.get("limit", dead_letters.MAX_MESSAGES), "limit", 1, dead_letters.MAX_MESSAGES
    )
    return {"group": names.check_group(group), "to": to, "limit": limit}


def _group_exists(checked: dict) -> None:
    """Raises NotFoundError."""
    # Of the broker's process, where this is called: a worker imports nothing of it
    from mqadmin.cluster.current import current_cluster

    cluster = current_cluster()
    cluster.call(cluster.group, checked["group"])


def _time(parameters: dict, name: str) -> int | None:
    value = parameters.get(name)
    try:
        return None if value in (None, "") else moment.read(str(value))
    except ValueError as error:
        raise Problem("invalid", f"{name}: {error}") from None


def _bounded(value: object, name: str, least: int, most: int) -> int:
    number = _whole(value)
    if number is None or not least <= number <= most:
        raise Problem("invalid", f"{name} is {value!r:.30}, want an integer from {least} to {most}")
    return number


def _whole(value: object) -> int | None:
    """An integer, also from the string that a 64-bit number is in JSON; None for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?\d{1,19}", value) else None


KINDS: dict[str, Kind] = {
    "check_store": Kind(check_store, "Check the store", "default", "operator", 12 * 3600, (), _check_nothing),
    "dry_run": Kind(
        dry_run, "Dry run of a start", "default", "operator", 900, ("accept_damage",), _check_dry_run
    ),
    "crash_lab": Kind(crash_lab, "Crash lab", "default", "operator", 300, LAB_TAKES, _check_lab),
    "rebuild_index": Kind(
        rebuild_index, "Rebuild the index", "default", "admin", 12 * 3600, (), _check_nothing
    ),
    "export_messages": Kind(
        export_messages, "Export messages", "default", "operator", 12 * 3600, EXPORT_TAKES, _check_export
    ),
    RESEND: Kind(
        resend_dead_letters,
        "Send dead letters again",
        "default",
        "operator",
        3600,
        RESEND_TAKES,
        _check_resend,
        "group",
        _group_exists,
    ),
    **{
        job.kind: Kind(
            partial(run_pipeline, job.name),
            job.title,
            "spark",
            "operator",
            12 * 3600,
            (*job.takes,),
            partial(pipeline.checked, job.name),
        )
        for job in pipeline.JOBS.values()
    },
}
PIPELINE = {job.kind: job.name for job in pipeline.JOBS.values()}


# What the dashboard does with them (in the process of the broker; every call is a short visit to Redis)


@contextmanager
def _redis_problems() -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        raise Problem("jobs_unavailable", "Redis does not answer") from error


def _queues() -> list:
    import django_rq

    return [django_rq.get_queue(name) for name in settings.RQ_QUEUES]


def start(
    kind_name: str, parameters: dict, caller: Caller, *, confirm: str | None = None, **about: object
) -> dict:
    """Put a job on its queue; its description. The caller's role decides which kinds; `about` is kept with
    it.

    A kind that cannot be taken back wants `confirm`: the value of its parameter that names what is changed.
    """
    kind = KINDS.get(kind_name)
    if kind is None:
        raise Problem("invalid", f"no job is called {kind_name!r:.60}; there are {', '.join(KINDS)}")
    if not caller.may(kind.role):
        raise Problem("forbidden", f"{kind_name} needs the role {kind.role}, {caller.name} is {caller.role}")
    checked = kind.check(parameters)
    kind.precondition(checked)
    if kind.confirms and confirm != checked[kind.confirms]:
        raise Problem(
            "confirmation_needed",
            f"“{kind.title}” cannot be taken back; confirm it by typing {checked[kind.confirms]}",
        )
    with _redis_problems(), _starting:
        queue = next(queue for queue in _queues() if queue.name == kind.queue)
        _check_room(caller)
        job = queue.create_job(
            f"mqadmin.jobs.{kind_name}",
            kwargs=checked,
            timeout=kind.timeout_seconds,
            result_ttl=KEEP_SECONDS,
            failure_ttl=KEEP_SECONDS,
            description=kind.title,
            meta={"by": caller.name, **about},
        )
        queue.enqueue_job(job)
        return describe(job)


def room() -> int:
    """How many more jobs may wait, 1 or more. Raises Problem where none may."""
    waiting = sum(queue.count for queue in _queues())
    if waiting >= MAX_WAITING:
        raise Problem("limit_reached", f"{waiting} jobs are waiting, at most {MAX_WAITING} may", _NO_ROOM)
    return MAX_WAITING - waiting


def _check_room(caller: Caller) -> None:
    """Refuse one more waiting job, of all or of this caller. Raises Problem."""
    if room() == MAX_WAITING:
        return
    queues = _queues()
    ids = [job_id for queue in queues for job_id in queue.get_job_ids()]
    jobs = AllowedJob.fetch_many(ids, connection=queues[0].connection, serializer=JSONSerializer)
    own = sum(
        job is not None and isinstance(job.meta, dict) and job.meta.get("by") == caller.name for job in jobs
    )
    if own >= MAX_WAITING_OF_USER:
        raise Problem(
            "limit_reached",
            f"{own} jobs of {caller.name} are waiting, at most {MAX_WAITING_OF_USER} of one user may",
            _NO_ROOM,
        )


def retry(job_id: str, caller: Caller, confirm: str | None = None, record: dict | None = None) -> dict:
    """Start the same again, as another job; the first stays as it is. `record` gets what it is and the id of
    the other, also what it is where it is refused."""
    with _redis_problems():
        job = _fetch(job_id)
        known = describe(job)
    record = {} if record is None else record
    record |= {"kind": known["kind"], "parameters": known["parameters"]}
    if known["kind"] == "unknown":
        raise Problem("forbidden", "this is not a job of this program")
    if known["state"] not in OVER:
        raise Problem("conflict", f"the job has not ended: it is {known['state']}")
    again = start(known["kind"], known["parameters"], caller, confirm=confirm, retry_of=job.id)
    record["id"] = again["id"]
    return again


def listing() -> list[dict]:
    """The newest jobs of every queue and state, newest first."""
    with _redis_problems():
        known = [describe(job) for queue in _queues() for job in _jobs_of(queue)]
    return sorted(known, key=lambda job: job["created_ms"] or 0, reverse=True)


def _jobs_of(queue: Any) -> list[AllowedJob]:
    ids = list(queue.get_job_ids(0, MAX_LISTED))
    for registry in (
        queue.started_job_registry,
        queue.finished_job_registry,
        queue.failed_job_registry,
        queue.canceled_job_registry,
        queue.scheduled_job_registry,
        queue.deferred_job_registry,
    ):
        ids += _newest_ids(registry)
    return _fetched(queue, dict.fromkeys(ids))


def _newest_ids(registry: Any) -> list[str]:
    return registry.get_job_ids(0, MAX_LISTED - 1, desc=True, cleanup=False)


def _fetched(queue: Any, ids: Iterable[str]) -> list[AllowedJob]:
    """The jobs of these ids that are still there, in this order."""
    found = AllowedJob.fetch_many(ids, connection=queue.connection, serializer=JSONSerializer)
    return [job for job in found if isinstance(job, AllowedJob)]


def failed_since(time_ms: int) -> int:
    """How many jobs ended by failing at or after a time, of the newest MAX_LISTED of each queue."""
    with _redis_problems():
        found = [
            describe(job)
            for queue in _queues()
            for job in _fetched(queue, _newest_ids(queue.failed_job_registry))
        ]
    return sum(job["state"] == "failed" and (job["ended_ms"] or 0) >= time_ms for job in found)


def last_done(kind: str) -> dict | None:
    """The job of a kind that was done last, among the newest MAX_LISTED of its queue."""
    with _redis_problems():
        queue = next(queue for queue in _queues() if queue.name == KINDS[kind].queue)
        # One at a time: the newest is nearly always of the kind.
        for job in (job for id in _newest_ids(queue.finished_job_registry) for job in _fetched(queue, [id])):
            if job.kind == kind:
                return describe(job)
    return None


def moving(*, runs_only: bool = False) -> dict:
    """How far each job is, or each run of the pipeline, newest first, for those who watch."""
    found = [job for job in listing() if job["pipeline"] or not runs_only]
    return {"mark": mark_of(found), "jobs": [_moving(job) for job in found]}


def state_of(job_id: str) -> dict:
    """How far one job is, for those who watch it."""
    job = find(job_id)
    return {"mark": mark_of([job]), "job": _moving(job)}


def _moving(job: dict) -> dict:
    return {name: job[name] for name in ("id", "state", "progress")}


def mark_of(found: list[dict]) -> str:
    """Says which jobs are in which states: a page with another mark is behind."""
    return hashlib.sha256("".join(f"{job['id']} {job['state']}\n" for job in found).encode()).hexdigest()[:16]


def check_id(job_id: str) -> str:
    if not JOB_ID.fullmatch(job_id):
        raise LookupNameError("that is no id of a job")
    return job_id


def find(job_id: str) -> dict:
    """One job's description; a Problem when there is none of this id."""
    with _redis_problems():
        return describe(_fetch(job_id))


def find_run(job_id: str, name: str | None = None) -> dict:
    """A run of the pipeline; a Problem when there is none of this id, or of this job."""
    if name is not None:
        pipeline.job_of(name)
    run = find(job_id)
    if run["pipeline"] is None or name not in (None, run["pipeline"]):
        raise Problem("not_found", f"there is no run {job_id} of {name or 'the pipeline'}")
    return run


def _fetch(job_id: str) -> AllowedJob:
    if not JOB_ID.fullmatch(job_id):
        raise Problem("not_found", "no job has such an id")
    try:
        job = AllowedJob.fetch(job_id, connection=_queues()[0].connection, serializer=JSONSerializer)
    except NoSuchJobError:
        raise Problem("not_found", f"there is no job {job_id} (any more)") from None
    assert isinstance(job, AllowedJob)
    return job


def cancel(job_id: str, caller: Caller) -> dict:
    """Take a waiting job off its queue, or stop a running one; one that ended stays as it is."""
    with _redis_problems():
        job = _fetch(job_id)
        kind = KINDS.get(job.kind or "")
        if kind is None or not caller.may(kind.role):
            raise Problem("forbidden", f"{caller.name} may not stop this job")
        status = job.get_status()
        if status in (JobStatus.FINISHED, JobStatus.FAILED, JobStatus.CANCELED, JobStatus.STOPPED):
            raise Problem("conflict", f"the job has ended already: {describe(job)['state']}")
        job.set_canceled_by(caller.name, int(time.time() * 1000))
        try:
            if status is JobStatus.STARTED:
                send_stop_job_command(job.connection, job.id, serializer=JSONSerializer)
            else:
                job.cancel()
            _clean_after(job, kind)
        except InvalidJobOperation as error:
            raise Problem("conflict", str(error)) from error
        return describe(job)


def _clean_after(job: Job, kind: Kind) -> None:
    """What the job's process would have done at its end, had it not been killed."""
    if kind.function is export_messages:
        exports.remove_unfinished(data_directory() / "exports", job.id)
    elif kind.function is rebuild_index:
        # Of the broker's process, where this is called: a worker imports nothing of it
        from mqadmin.cluster.current import current_cluster

        cluster = current_cluster()
        cluster.call(cluster.cancel_rebuild)


def mark_interrupted() -> int:
    """Mark what still counts as running as interrupted; for the moment when every worker has ended. How many
    those were."""
    count = 0
    for queue in _queues():
        registry: StartedJobRegistry = queue.started_job_registry
        for job_id, execution_id in registry.get_job_and_execution_ids(cleanup=False):
            with queue.connection.pipeline() as pipeline:
                pipeline.zrem(registry.key, f"{job_id}:{execution_id}")
                job = next(
                    iter(
                        AllowedJob.fetch_many(
                            [job_id], connection=queue.connection, serializer=JSONSerializer
                        )
                    )
                )
                if job is not None:
                    job.meta["interrupted"] = True
                    job.save_meta()
                    exports.remove_unfinished(data_directory() / "exports", job.id)
                    job.set_status(JobStatus.FAILED, pipeline=pipeline)
                    job._handle_failure("interrupted: the broker was stopped while the job ran", pipeline)
                    count += 1
                pipeline.execute()
    return count


OVER = frozenset({"done", "failed", "canceled", "interrupted"})
_STATES: dict[JobStatus | None, str] = {
    JobStatus.QUEUED: "waiting",
    JobStatus.DEFERRED: "waiting",
    JobStatus.SCHEDULED: "waiting",
    JobStatus.CREATED: "waiting",
    JobStatus.STARTED: "running",
    JobStatus.FINISHED: "done",
    JobStatus.FAILED: "failed",
    JobStatus.STOPPED: "canceled",
    JobStatus.CANCELED: "canceled",
}


def describe(job: AllowedJob) -> dict:
    """What pages and REST show of a job. Times in milliseconds; None is unknown or not yet."""
    meta = job.meta if isinstance(job.meta, dict) else {}
    state = _STATES.get(job.get_status(refresh=False), "waiting")
    if meta.get("interrupted"):
        state = "interrupted"
    elif state in ("failed", "running") and job.canceled_by:
        state = "canceled" if state == "failed" else "canceling"
    result = job.return_value() if state == "done" else None
    kind = KINDS.get(job.kind or "")
    return {
        "id": job.id,
        "kind": job.kind or "unknown",
        "title": kind.title if kind else "unknown job",
        "queue": job.origin,
        "state": state,
        "parameters": parameters_of(job),
        "by": meta.get("by"),
        "canceled_by": job.canceled_by,
        "created_ms": _ms(job.created_at),
        "created": time_text(_ms(job.created_at)),
        "started_ms": _ms(job.started_at),
        # A job that was killed notes no end of its own.
        "ended_ms": job.canceled_ms if state == "canceled" and job.ended_at is None else _ms(job.ended_at),
        "progress": meta.get("progress"),
        "result": result if isinstance(result, dict) else None,
        "error": _error_sentence(job) if state == "failed" else None,
        "has_file": isinstance(result, dict) and "file" in result,
        "pipeline": PIPELINE.get(job.kind or ""),
        "retry_of": meta.get("retry_of"),
        "schedule": meta.get("schedule"),
    }


def parameters_of(job: Job) -> dict:
    try:
        return dict(job.kwargs)
    except (DeserializationError, TypeError, ValueError):
        # whatever a foreign payload makes of itself: the list must still come
        return {}


def _ms(moment: Any) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1000)


def _error_sentence(job: Job) -> str:
    """Why a job failed, in a sentence: its own words when it gave up, else that the program failed. Paths,
    classes and the stack stay in the worker's log."""
    result = job.latest_result()
    trace = (result.exc_string if result is not None else None) or ""
    line = trace.strip().rpartition("\n")[2]
    kind, _, said = line.partition(": ")
    name = kind.rpartition(".")[2]
    if not line:
        return "no reason was kept"
    if name == JobFailed.__name__ and said:
        return said[:500]
    if name in _ENDS:
        return _ENDS[name]
    if not re.fullmatch(r"(?:\w+\.)*[A-Z]\w*", kind):  # no class: a sentence of ours, or of rq's
        return line[:500]
    return "the program failed at it; the worker's log, logs/worker-*.log of the data directory, says where"


# What ends a job from outside, by the class of rq's that says so.
_ENDS = {
    "JobTimeoutException": "it took longer than this kind of job may",
    "AbandonedJobError": "its worker ended while it ran",
    "PermissionError": "it is no job of this program",
}
