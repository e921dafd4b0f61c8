"""The kinds of jobs. The names in KINDS are in Redis, in schedules and in records, so they must not
change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from broker_store.errors import NameError_
from broker_store.rest.problems import Problem
from broker_store.units import Document, document_of
from mqadmin.jobs import backups, parameters, pipeline, runs
from mqadmin.jobs.facts import AuditSummary
from mqadmin.jobs.parameters import Arguments, ResendArguments, keywords_of
from mqadmin.jobs.progress import JobFailed

BACKUP = "backup"
RESEND = "resend_dead_letters"  # the kind that dead letters have a page for


@dataclass(frozen=True)
class Kind:
    """One allowed kind of job. `takes` are the names of its parameters; `check` returns the function's
    arguments for given parameters. It raises Problem or NameError_."""

    function: Callable[..., Any]  # returns the result: facts, or their JSON
    title: str
    queue: str
    role: str
    timeout_seconds: int
    takes: tuple[str, ...]
    check: Callable[[dict[str, Any]], Arguments]
    confirms: str = ""  # the parameter whose value must be typed to confirm a job that cannot be undone
    # Raises an error for a run that would surely fail; called in the broker's process
    precondition: Callable[[Any], None] = lambda arguments: None

    def run(self, *arguments: object, **given: object) -> Document:
        """Run the job, in a worker, and return the result as JSON, which Redis keeps. The parameters come
        from Redis, where they may have been changed since they were checked."""
        if arguments:
            raise JobFailed(f"{self.title} takes no arguments without a name")
        try:
            checked = keywords_of(self.check(given))
        except (Problem, NameError_) as problem:
            raise JobFailed(f"refused: {problem}") from None
        return json_of(self.function(**checked))


def json_of(result: Any) -> Document:
    """Return a result as JSON. Numbers that an audit has not read are left out, not null."""
    document: Document = document_of(result)
    if isinstance(result, AuditSummary):
        return {name: value for name, value in document.items() if value is not None}
    return document


def _has_directory(arguments: backups.BackupArguments) -> None:
    """Check that there is a directory for backups. Raises Problem."""
    backups.directory()


def _group_exists(arguments: ResendArguments) -> None:
    """Check that the group exists. Raises NotFoundError."""
    # Imported here: this runs in the broker's process, and a worker must not import the cluster
    from mqadmin.cluster.current import current_cluster

    cluster = current_cluster()
    cluster.call(cluster.groups.detail, arguments.group)


KINDS: dict[str, Kind] = {
    "check_store": Kind(
        runs.check_store, "Check the store", "default", "operator", 12 * 3600, (), parameters.check_nothing
    ),
    "dry_run": Kind(
        runs.dry_run,
        "Dry run of a start",
        "default",
        "operator",
        900,
        ("accept_damage",),
        parameters.check_dry_run,
    ),
    "crash_lab": Kind(
        runs.crash_lab, "Crash lab", "default", "operator", 300, parameters.LAB_TAKES, parameters.check_lab
    ),
    "rebuild_index": Kind(
        runs.rebuild_index, "Rebuild the index", "default", "admin", 12 * 3600, (), parameters.check_nothing
    ),
    "export_messages": Kind(
        runs.export_messages,
        "Export messages",
        "default",
        "operator",
        12 * 3600,
        parameters.EXPORT_TAKES,
        parameters.check_export,
    ),
    # It has all messages, passwords and keys
    BACKUP: Kind(
        runs.back_up,
        "Backup",
        "default",
        "admin",
        12 * 3600,
        backups.TAKES,
        parameters.check_backup,
        precondition=_has_directory,
    ),
    RESEND: Kind(
        runs.resend_dead_letters,
        "Send dead letters again",
        "default",
        "operator",
        3600,
        parameters.RESEND_TAKES,
        parameters.check_resend,
        "group",
        _group_exists,
    ),
    **{
        job.kind: Kind(
            partial(runs.run_pipeline, job.name),
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
