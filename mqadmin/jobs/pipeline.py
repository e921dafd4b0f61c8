"""Runs of the pipeline, as the dashboard handles them: the jobs, their parameters, and the files of a run.

    data/archive/                 the files of the job `archive`, the only place to which it writes
    data/pipeline/RUN.json        the whole result of a run; Redis, whose memory is bounded, has a summary
    data/pipeline/RUN.log         its steps with their times, and the output of Spark and Java

Nothing here imports pyspark: a run is `manage.py pipeline` in a process of its own, started by a worker
(`mqadmin/jobs/runs.py`). Arguments are checked by `checked` where they come in and again in the worker, since
Redis lies in between.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from broker_store.formats import moment, names
from broker_store.pipeline.results import RESULTS, Archive, Audit, Lineage, Result, Statistics
from broker_store.rest.problems import Problem
from broker_store.units import Document, document_of, fact_of
from mqadmin.jobs.facts import (
    ArchiveSummary,
    AuditSummary,
    LineageSummary,
    StatisticsSummary,
    Summary,
)

MAX_KEY_BYTES = 1_024
MAX_TIME_MS = 1 << 53
LOG_SHOWN_BYTES = 64 << 10  # of the end of a log
LOG_KEPT_BYTES = 1 << 20
MAX_RESULT_BYTES = 64 << 20
RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
CHOICE = ("topic", "begin_ms", "end_ms")


@dataclass(frozen=True)
class PipelineJob:
    name: str
    title: str
    lead: str  # a sentence that states what it does
    takes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """Its name in KINDS of `mqadmin/jobs/kinds.py`."""
        return f"pipeline_{self.name}"


JOBS = {
    job.name: job
    for job in (
        PipelineJob("audit", "Audit", "Checks every record, queue unit and index entry against one another."),
        PipelineJob(
            "statistics",
            "Statistics",
            "Counts, sizes, keys and delays of each topic, tag, group and hour; how the index is filled.",
            CHOICE,
        ),
        PipelineJob(
            "lineage",
            "Lineage of a key",
            "Follows a key through all topics, in the order its records were stored.",
            ("key", *CHOICE),
            ("key",),
        ),
        PipelineJob(
            "archive",
            "Archive",
            "Adds new records to Parquet files by topic and day, in the folder archive of the data "
            "directory.",
        ),
    )
}


def job_of(name: str) -> PipelineJob:
    job = JOBS.get(name)
    if job is None:
        raise Problem("not_found", f"the pipeline has no job {name!r:.60}; there are {', '.join(JOBS)}")
    return job


# Arguments of a run


@dataclass(frozen=True, slots=True, kw_only=True)
class RunArguments:
    """The arguments of a run; None: the parameter was not given, or empty."""

    topic: str | None = None
    begin_ms: int | None = None
    end_ms: int | None = None
    key: str | None = None


def checked(name: str, parameters: dict[str, Any]) -> RunArguments:
    """Return the parameters of a run, each known and within its bounds. Raises Problem; NameError_ for a
    topic."""
    job = job_of(name)
    given = {parameter: value for parameter, value in parameters.items() if value not in (None, "")}
    refuse_unknown(name, given, job.takes)
    missing = set(job.needs) - given.keys()
    if missing:
        raise Problem("invalid", f"{name} needs the parameter {min(missing)}")
    found = RunArguments(**{parameter: _CHECKS[parameter](value) for parameter, value in given.items()})
    end_ms = MAX_TIME_MS + 1 if found.end_ms is None else found.end_ms
    if (found.begin_ms or 0) >= end_ms:
        raise Problem("invalid", "begin_ms is not before end_ms")
    return found


def refuse_unknown(job: str, parameters: dict[str, Any], takes: Iterable[str]) -> None:
    unknown = parameters.keys() - set(takes)
    if unknown:
        raise Problem("invalid", f"{job} has no parameter {min(unknown)!r:.60}")


def _topic(value: object) -> str:
    if not isinstance(value, str):
        raise Problem("invalid", f"topic is {value!r:.30}, expected a name")
    return names.check_topic(value)


def _key(value: object) -> str:
    # A NUL would end an argument of a process, and no key has one.
    if not isinstance(value, str) or "\0" in value or len(value.encode("utf-8", "replace")) > MAX_KEY_BYTES:
        raise Problem("invalid", f"key must be a text of at most {MAX_KEY_BYTES} bytes")
    return value


def _time(value: object) -> int:
    """Return milliseconds since 1970 of a number, or of a text that is a time."""
    try:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError(
                f"{value!r:.30} is not a time: expected milliseconds since 1970, or a time such as "
                f"{moment.EXAMPLE}"
            )
        return moment.read(str(value))
    except ValueError as error:
        raise Problem("invalid", f"{error}") from None


_CHECKS: dict[str, Callable[[object], Any]] = {
    "topic": _topic,
    "key": _key,
    "begin_ms": _time,
    "end_ms": _time,
}
_OPTIONS = {"topic": "--topic", "key": "--key", "begin_ms": "--from-time", "end_ms": "--to-time"}


def arguments(name: str, parameters: dict[str, Any], data: Path, store: Path) -> list[str]:
    """Return the arguments of `manage.py` for a run. Each value is joined to its option, so that none is read
    as another option."""
    given = [f"{_OPTIONS[parameter]}={value}" for parameter, value in parameters.items()]
    if name == "archive":
        given.append(f"--out={archive_directory(data)}")
    return ["pipeline", name, *given, f"--store={store}", f"--data={data}", "--progress", "--json"]


def archive_directory(data: Path) -> Path:
    return data / "archive"


# The files of a run


def directory(data: Path) -> Path:
    return data / "pipeline"


def prepare(data: Path, keep_seconds: float) -> None:
    """Make the directory of results and logs. Remove what is older than `keep_seconds`, also files of killed
    runs in Spark's directory."""
    path = directory(data)
    path.mkdir(mode=0o700, exist_ok=True)
    oldest = time.time() - keep_seconds
    for old in path.iterdir():
        if old.suffix in (".json", ".log", ".part") and old.stat().st_mtime < oldest:
            old.unlink(missing_ok=True)
    for old in (data / "cache" / "spark").glob("*"):
        if old.stat().st_mtime < oldest:
            shutil.rmtree(old, ignore_errors=True)


def log_path(data: Path, run: str) -> Path:
    return _of_run(data, run, ".log")


def result_path(data: Path, run: str) -> Path:
    return _of_run(data, run, ".json")


def _of_run(data: Path, run: str, suffix: str) -> Path:
    if not RUN_ID.fullmatch(run):
        raise Problem("not_found", "no run has such an id")
    return directory(data) / f"{run}{suffix}"


def write_result(data: Path, run: str, result: Result) -> None:
    path = result_path(data, run)
    part = path.with_suffix(".part")
    with open(part, "w", opener=_private) as file:
        json.dump(document_of(result), file)
    part.replace(path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def open_log(data: Path, run: str) -> IO[bytes]:
    """Open the log of a run, for its own lines and the output of its processes, to append to."""
    return open(log_path(data, run), "ab", buffering=0, opener=_private)


def cut_log(data: Path, run: str) -> None:
    """Keep the last LOG_KEPT_BYTES of a log that is longer."""
    path = log_path(data, run)
    size = path.stat().st_size
    if size > LOG_KEPT_BYTES:
        with open(path, "rb") as file:
            file.seek(size - LOG_KEPT_BYTES)
            end = file.read()
        path.write_bytes(b"... the beginning was cut off\n" + end.partition(b"\n")[2])


def read_result(data: Path, run: str, name: str) -> Result:
    """Return the whole result of a run of the job `name`. Raises Problem, also for one that cannot be read
    as such."""
    try:
        return fact_of(RESULTS[name], read_document(data, run))
    except ValueError as error:
        raise Problem("not_found", f"this run has a result of another version: {error}") from None


def read_document(data: Path, run: str) -> Document:
    """Return the whole result as JSON, for REST. Raises Problem when it is not there (any more), or too
    large."""
    path = result_path(data, run)
    try:
        if path.stat().st_size > MAX_RESULT_BYTES:
            raise Problem(
                "too_large",
                f"the result has more than {MAX_RESULT_BYTES >> 20} MiB; read the file "
                f"pipeline/{path.name} in the data directory",
            )
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise Problem("not_found", "this run has no result (any more)") from None


def read_log(data: Path, store: Path, run: str) -> str:
    """Return the end of a run's log, without paths of this machine; "" when there is no log."""
    try:
        with open(log_path(data, run), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - LOG_SHOWN_BYTES))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    if size > LOG_SHOWN_BYTES:
        text = "... the lines before are left out\n" + text.partition("\n")[2]
    return without_paths(text, data, store)


def without_paths(text: str, data: Path, store: Path) -> str:
    """Return the text with the paths of this machine replaced by names: readers of runs need no paths."""
    project = Path(__file__).resolve().parents[2]
    places = {
        store: "STORE",
        data: "DATA",
        Path(sys.prefix): "PYTHON",
        project: "PROJECT",
        Path.home(): "HOME",
    }
    for place, word in sorted(places.items(), key=lambda pair: -len(str(pair[0]))):
        if len(place.parts) > 1:
            text = text.replace(str(place), word)
    return text


def sentence_of(errors: str, status: int) -> str:
    """Return why a run failed, from the end of its process's output: the sentence of a CommandError, else the
    last error, else its exit status."""
    sentences = re.findall(r"^CommandError: (.+)$", errors, re.MULTILINE)
    if sentences:
        return sentences[-1]
    if "java.lang.OutOfMemoryError" in errors:
        return "Java ran out of memory; free some, or run `manage.py pipeline` with a larger --heap"
    if status < 0:
        return (
            f"the process was killed (signal {-status}); when no user did that, the machine ran out of memory"
        )
    raised = re.findall(r"^[\w.]+(?:Error|Exception)\b.*$", errors, re.MULTILINE)
    last = (
        raised
        or [line for line in errors.splitlines() if line.strip()]
        or [f"it ended with exit status {status} and without output"]
    )[-1]
    # The class of an error is for programmers; the run's log has it.
    return re.sub(r"^[\w.]*(?:Error|Exception): ", "", last.strip())


def summary(result: Result) -> Summary:
    """Return the numbers of a result that lists show."""
    match result:
        case Audit():
            warnings = sum(one.severity != "error" for one in result.findings)
            return AuditSummary(ok=result.ok, errors=result.errors, warnings=warnings, **result.counts)
        case Statistics():
            return StatisticsSummary(
                messages=result.messages,
                bytes=result.bytes,
                topics=len(result.topics),
                complete=result.complete,
            )
        case Lineage():
            topics = {record.topic for record in result.records}
            return LineageSummary(records=len(result.records), topics=len(topics), complete=result.complete)
        case Archive():
            return ArchiveSummary(
                records=result.records,
                files=result.files,
                bytes=result.bytes,
                to=result.to,
                missing=len(result.missing),
            )
