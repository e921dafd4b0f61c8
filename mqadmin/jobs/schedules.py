"""Schedules: runs of the pipeline and backups that start by themselves, at the times of a cron expression
(five fields, UTC).

They are in the database, so a restart or a lost Redis loses none. `manage.py run_jobs schedules`, a child of
runbroker, starts runs that are due (`mqadmin/jobs/cron.py`). A run that was due while that process did not
run is left out.
"""

from __future__ import annotations

import time
from typing import Any

from croniter import croniter
from django.db import models
from rq.cron import CronJob

from broker_store.rest.callers import Caller
from broker_store.rest.documents import time_text
from broker_store.rest.problems import Problem
from mqadmin.jobs.facts import Schedule
from mqadmin.jobs.kinds import BACKUP, KINDS, PIPELINE, Kind
from mqadmin.jobs.parameters import keywords_of

MAX_SCHEDULES = 50
# The jobs that may have one, by the names that are in the database -> their kinds
JOBS = {**{name: kind for kind, name in PIPELINE.items()}, BACKUP: BACKUP}
MAX_CRON = 100
# The fields of a cron expression; croniter would accept a sixth one for seconds.
FIELDS = (
    ("minute", "0 to 59"),
    ("hour", "0 to 23"),
    ("day", "1 to 31"),
    ("month", "1 to 12 or jan to dec"),
    ("weekday", "0 to 7 or sun to sat"),
)


class PipelineSchedule(models.Model):
    job = models.CharField(max_length=20)
    parameters = models.JSONField(default=dict)
    cron = models.CharField(max_length=MAX_CRON)
    created_by = models.CharField(max_length=160)
    created_ms = models.BigIntegerField()
    # The last run, or the reason why there was none.
    last_ms = models.BigIntegerField(null=True)
    last_run = models.CharField(max_length=64, blank=True)
    last_problem = models.CharField(max_length=300, blank=True)

    class Meta:
        app_label = "mqadmin"
        ordering = ("id",)

    def __str__(self) -> str:
        return f"{self.job} at {self.cron}"


class ScheduledJob(CronJob):
    """rq's job, with the number of its schedule in the database."""

    schedule_id: int


def cron_job(cron: str, **more: Any) -> ScheduledJob:
    """Return a job of rq, which computes when it is due. Raises Problem for a text that is no cron
    expression, and for a day that no month has."""
    text = " ".join(cron.split())
    if len(text) > MAX_CRON or len(text.split()) != len(FIELDS):
        raise Problem(
            "invalid",
            f"{cron[:60]!r} is no cron expression: expected minute, hour, day, month and weekday, such "
            f"as 30 2 * * *",
        )
    try:
        return ScheduledJob("spark", func_name="mqadmin.jobs", cron=text, **more)
    except ValueError:  # of croniter: for a field that is wrong as for a day that no month has
        raise Problem("invalid", f"{text!r} is no cron expression: {_wrong_field(text)}") from None


def _wrong_field(text: str) -> str:
    """Return which field of a cron expression is wrong, and which values it takes."""
    for number, (value, (name, takes)) in enumerate(zip(text.split(), FIELDS, strict=True)):
        alone = ["*"] * len(FIELDS)
        alone[number] = value
        if not croniter.is_valid(" ".join(alone)):
            return (
                f"its {name} is {value!r:.30}, expected {takes}, *, a list (1,2), a range (1-3) or a "
                f"step (*/2)"
            )
    return "no month has that day"


def add(job: str, parameters: dict[str, Any], cron: str, caller: Caller) -> Schedule:
    """Store a schedule, and return it. Raises Problem."""
    kind = kind_of(job)
    if not caller.may(kind.role):
        raise Problem("forbidden", f"{job} needs the role {kind.role}; {caller.name} has {caller.role}")
    checked, due = kind.check(parameters), cron_job(cron)
    if PipelineSchedule.objects.count() >= MAX_SCHEDULES:
        raise Problem(
            "limit_reached", f"there are {MAX_SCHEDULES} schedules", "remove one that is not needed"
        )
    made = PipelineSchedule.objects.create(
        job=job,
        parameters=keywords_of(checked),
        cron=due.cron,
        created_by=caller.name,
        created_ms=int(time.time() * 1000),
    )
    return describe(made)


def kind_of(job: str) -> Kind:
    """Return the kind of the runs of a schedule. Raises Problem."""
    if job not in JOBS:
        raise Problem("not_found", f"there is no schedule for {job!r:.60}; there are {', '.join(JOBS)}")
    return KINDS[JOBS[job]]


def listing() -> list[Schedule]:
    return [describe(schedule) for schedule in PipelineSchedule.objects.all()]


def find(schedule_id: int) -> PipelineSchedule:
    try:
        return PipelineSchedule.objects.get(pk=schedule_id)
    except (PipelineSchedule.DoesNotExist, OverflowError):
        raise Problem("not_found", f"there is no schedule {schedule_id}") from None


def remove(schedule_id: int) -> None:
    find(schedule_id).delete()


def describe(schedule: PipelineSchedule) -> Schedule:
    following = cron_job(schedule.cron).next_enqueue_time
    assert following is not None  # of a job with a cron expression
    next_ms = int(following.timestamp() * 1000)
    return Schedule(
        id=schedule.pk,
        job=schedule.job,
        title=KINDS[JOBS[schedule.job]].title if schedule.job in JOBS else schedule.job,
        parameters=schedule.parameters,
        cron=schedule.cron,
        created_by=schedule.created_by,
        created_ms=schedule.created_ms,
        next_ms=next_ms,
        next=time_text(next_ms),
        last_ms=schedule.last_ms,
        last_run=schedule.last_run or None,
        last_problem=schedule.last_problem or None,
    )
