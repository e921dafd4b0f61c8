"""Jobs as a worker of rq loads and runs them.

A process that can write to Redis must not be able to run code here (docs/durability.md S21): payloads are
JSON, never pickle, for any options of the command line. A job's function comes from KINDS; nothing is
imported by a name from Redis.

A job runs in a process that the worker forks. To stop one, the worker sends a signal to that process's group,
so what the job started (a Spark job's JVM) ends with it.
"""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable
from typing import Any

from rq import Worker, serializers
from rq.exceptions import DeserializationError
from rq.job import Job, JobStatus
from rq.serializers import JSONSerializer

from mqadmin.jobs.kinds import KINDS

# rq reads pickles where it is not given a serializer; django-rq gives none when it stops jobs, deletes the
# failed ones or shows a worker's.
serializers.PickleSerializer = JSONSerializer  # type: ignore[assignment]  # on purpose

# In Redis the name of a job's function is this and its kind. No module is imported by that name; it stays the
# same, since jobs of earlier versions have it.
FUNCTIONS = "mqadmin.jobs."
PR_SET_PDEATHSIG = 1


class AllowedJob(Job):
    """A job whose function comes from KINDS; any other name in its record in Redis is not run."""

    @property
    def kind(self) -> str | None:
        """The key in KINDS, None for a payload that is no job of this program."""
        try:
            name = str(self.func_name).removeprefix(FUNCTIONS)
        except DeserializationError:
            return None
        return name if name in KINDS else None

    @property
    def func(self) -> Callable[..., Any]:
        if self.kind is None:
            raise PermissionError(f"{self.func_name!r:.80} is not a job of this program")
        return KINDS[self.kind].run

    # The user that stopped it and the time are fields of their own in Redis: in the meta, the running job
    # would overwrite them.
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
        """Send none: an address in Redis might be any host of this network."""


class JobWorker(Worker):
    """A worker that reads only JSON, and whose children end with it."""

    def __init__(self, *arguments: Any, **options: Any):
        options["serializer"] = JSONSerializer
        options["job_class"] = AllowedJob
        super().__init__(*arguments, **options)

    def main_work_horse(self, job: Job, queue: Any) -> None:
        end_with_parent()
        super().main_work_horse(job, queue)


def end_with_parent() -> None:
    """Make the kernel kill this process when the thread that forked it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
