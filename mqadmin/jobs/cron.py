"""The process that starts scheduled runs: rq's cron scheduler, which reads its jobs from the database at each
step.

rq decides when a schedule is due. It does not put the function on a queue, as it would do by itself with
pickled arguments: a run starts as one that a user starts. Kind and parameters are checked, the role is the
present one of the user or token that made the schedule, and an audit record is written. When the previous run
has not ended, the next is left out.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime

import django_rq
from django.contrib.auth import get_user_model
from redis import Redis
from rq.cron import CronScheduler
from rq.utils import now

from broker_store.rest.callers import Caller
from broker_store.rest.problems import Problem
from mqadmin import audit
from mqadmin.jobs import queue, schedules
from mqadmin.jobs.facts import OVER
from mqadmin.jobs.schedules import PipelineSchedule
from mqadmin.web import roles
from mqadmin.web.tokens import ApiToken

log = logging.getLogger(__name__)

NEW_MS = 30_000  # a schedule that is younger may not have been read before
READ_SECONDS = 5.0  # at most until a new schedule is read; cron's own step is a minute


class Scheduler(CronScheduler):
    """rq's scheduler, with the schedules of the database as its jobs."""

    _cron_jobs: list[schedules.ScheduledJob]  # type: ignore[assignment]  # from `read_schedules`

    def __init__(self, connection: Redis | None = None):
        super().__init__(connection if connection is not None else django_rq.get_connection("spark"))

    def enqueue_jobs(self) -> list:
        self.read_schedules()
        due = [job for job in self._cron_jobs if job.should_run()]
        for job in due:
            job.set_enqueue_time(now())
            start(job.schedule_id)
        return due

    def read_schedules(self) -> None:
        known = {job.schedule_id: job for job in self._cron_jobs}
        self._cron_jobs = [known.get(one.pk) or _due(one) for one in PipelineSchedule.objects.all()]

    def calculate_sleep_interval(self) -> float:
        return min(READ_SECONDS, super().calculate_sleep_interval())


def _due(schedule: PipelineSchedule) -> schedules.ScheduledJob:
    job = schedules.cron_job(schedule.cron, name=f"{schedule.job}-{schedule.pk}")
    job.schedule_id = schedule.pk
    if time.time() * 1000 - schedule.created_ms < NEW_MS:
        # Its first run is at the time that was shown when it was made, also if it is read after that minute
        # began.
        job.set_enqueue_time(datetime.fromtimestamp(schedule.created_ms / 1000, UTC))
    return job


def start(schedule_id: int) -> None:
    """Start the run of a schedule that is due, and store its id, or the reason why it did not start. A
    schedule that was removed meanwhile starts none."""
    try:
        schedule = schedules.find(schedule_id)
    except Problem:
        return
    schedule.last_ms, schedule.last_problem = int(time.time() * 1000), ""
    try:
        caller = caller_of(schedule.created_by)
        _check_previous_run(schedule.last_run)
        if schedule.job not in schedules.JOBS:
            raise Problem("not_found", f"this version has no job {schedule.job}")
        kind = schedules.JOBS[schedule.job]
        with audit.audited(
            caller, "start", "job", kind, parameters=schedule.parameters, schedule=schedule.pk
        ) as record:
            run = queue.start(kind, schedule.parameters, caller, schedule=schedule.pk)
            record["id"] = schedule.last_run = run.id
    except Problem as problem:
        log.warning("schedule %d (%s) did not start: %s", schedule.pk, schedule.job, problem)
        schedule.last_problem = f"{problem}"[:300]
    # An update, not a save: a schedule that was removed meanwhile must not come back.
    PipelineSchedule.objects.filter(pk=schedule.pk).update(
        last_ms=schedule.last_ms, last_run=schedule.last_run, last_problem=schedule.last_problem
    )


def _check_previous_run(run_id: str) -> None:
    try:
        before = queue.find(run_id).state if run_id else "done"
    except Problem as problem:
        if problem.code != "not_found":
            raise
        return  # its record was removed after its time
    if before not in OVER:
        raise Problem("conflict", f"left out: the previous run is {before}")


def caller_of(name: str) -> Caller:
    """Return the user or token that made a schedule, with its present role. Raises Problem when it may start
    no run any more."""
    kind, _, who = name.partition(":")
    role = None
    if kind == "user":
        user = (
            get_user_model().objects.filter(**{get_user_model().USERNAME_FIELD: who}, is_active=True).first()
        )
        role = user and roles.role_of(user)
    elif kind == "token":
        role = next(
            (
                token.role
                for token in ApiToken.objects.filter(name=who, revoked_at=None)
                if token.state == "active"
            ),
            None,
        )
    elif kind == "local":
        role = "admin"
    caller = Caller(name, role or "viewer")
    if not caller.may("operator"):
        raise Problem("forbidden", f"{name} may not start runs any more")
    return caller
