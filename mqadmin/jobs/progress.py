"""The progress of a job. The job writes it into its meta in Redis, at most four times a second."""

from __future__ import annotations

import time
from typing import Any

from rq import get_current_job
from rq.job import Job

from broker_store.units import document_of
from mqadmin.jobs.facts import JobProgress, Step

INTERVAL_SECONDS = 0.25  # between two writes
MAX_STEPS = 60  # kept in a job's progress
MAX_TEXT = 300  # characters of a step


class JobFailed(Exception):
    """A job could not do its work; users see the message."""


class Progress:
    """Writes the progress of the current job. Outside a worker (a command, a test) it writes nothing."""

    def __init__(self, job: Job | None = None):
        self._job = job if job is not None else get_current_job()
        self._written = 0.0
        self._steps: list[Step] = []

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
        now, at_ms, text = time.monotonic(), int(time.time() * 1000), text[:MAX_TEXT]
        if not self._steps or self._steps[-1].text != text:
            self._steps = [*self._steps[1 - MAX_STEPS :], Step(text=text, began_ms=at_ms)]
        if self._job is None or (now - self._written < INTERVAL_SECONDS and not last):
            return
        self._written = now
        progress = JobProgress(
            text=text,
            done=done,
            total=total,
            running=running,
            unit=unit,
            at_ms=at_ms,
            steps=self._steps,
        )
        self._job.meta["progress"] = document_of(progress)
        self._job.save_meta()


def read(value: Any) -> JobProgress | None:
    """Return the progress in a job's meta; None without one. Redis may hold anything: a field of a wrong type
    counts as unknown."""
    if not isinstance(value, dict):
        return None
    steps = value.get("steps")
    return JobProgress(
        text=str(value.get("text", "")),
        done=_number(value.get("done")),
        total=_number(value.get("total")),
        running=_number(value.get("running")),
        unit=str(value.get("unit", "")),
        at_ms=_number(value.get("at_ms")),
        steps=[
            Step(text=str(step.get("text", "")), began_ms=began_ms)
            for step in (steps if isinstance(steps, list) else ())
            if isinstance(step, dict) and (began_ms := _number(step.get("began_ms"))) is not None
        ],
    )


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
