"""Schedules: stored, listed, removed, and started when they are due with the rights their maker has then."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from rq.utils import now

from broker_store.rest.callers import Caller
from broker_store.rest.problems import Problem
from mqadmin import audit
from mqadmin.jobs import cron, queue, schedules
from mqadmin.jobs.schedules import PipelineSchedule
from mqadmin.web import tokens
from tests.support.fake_runs import job_of

pytestmark = pytest.mark.django_db(transaction=True)

OPERATOR = Caller("user:the-operator", "operator")


@pytest.fixture
def started(monkeypatch):
    """What was started, in place of a Redis; each run stays `running`."""
    found = []

    def start(kind, parameters, caller, **about):
        found.append((kind, parameters, caller, about))
        return job_of(id=f"run-{len(found)}")

    monkeypatch.setattr(queue, "start", start)
    monkeypatch.setattr(queue, "find", lambda run_id: job_of(state="running"))
    return found


def due(scheduler: cron.Scheduler) -> cron.Scheduler:
    """The scheduler, a day after its schedules were read."""
    scheduler.read_schedules()
    for job in scheduler.get_jobs():
        job.next_enqueue_time = now() - timedelta(seconds=1)
    return scheduler


def test_a_due_schedule_starts_its_run_once_and_is_due_again_later(started, user_of_role):
    user_of_role("operator")
    made = schedules.add("lineage", {"key": "order-1"}, " 30  2 * * * ", OPERATOR)
    assert (made.cron, made.last_run, made.created_by) == ("30 2 * * *", None, "user:the-operator")
    scheduler = cron.Scheduler(connection=object())
    assert scheduler.enqueue_jobs() == [] and started == []
    due(scheduler).enqueue_jobs()
    scheduler.enqueue_jobs()
    assert started == [("pipeline_lineage", {"key": "order-1"}, OPERATOR, {"schedule": made.id})]
    [job] = scheduler.get_jobs()
    assert now() < job.next_enqueue_time <= now() + timedelta(days=1)
    [kept] = schedules.listing()
    assert (kept.last_run, kept.last_problem) == ("run-1", None) and kept.last_ms
    assert audit.read(LogEntry.objects.get()).detail["schedule"] == made.id


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "61 * * * *",
            "its minute is '61', expected 0 to 59, *, a list (1,2), a range (1-3) or a step (*/2)",
        ),
        (
            "0 0 * * mon-xx",
            "its weekday is 'mon-xx', expected 0 to 7 or sun to sat, *, a list (1,2), a range (1-3) or a "
            "step (*/2)",
        ),
        ("0 0 31 2 *", "no month has that day"),
    ],
)
def test_a_wrong_cron_expression_is_refused_by_its_field(text, said):
    with pytest.raises(Problem) as raised:
        schedules.cron_job(text)
    assert str(raised.value) == f"{text!r} is no cron expression: {said}"


def test_schedules_survive_a_restart_and_one_that_was_removed_is_gone(started, user_of_role):
    user_of_role("operator")
    first, second = (schedules.add("audit", {}, text, OPERATOR) for text in ("0 1 * * *", "0 2 * * *"))
    running = due(cron.Scheduler(connection=object()))
    schedules.remove(first.id)
    running.enqueue_jobs()
    assert [about["schedule"] for *_, about in started] == [second.id]
    again = cron.Scheduler(connection=object())
    again.read_schedules()
    assert [job.schedule_id for job in again.get_jobs()] == [second.id]
    with pytest.raises(Problem, match="no schedule"):
        schedules.remove(first.id)


def test_one_that_is_removed_in_the_moment_it_starts_does_not_come_back(started, user_of_role, monkeypatch):
    user_of_role("operator")
    made = schedules.add("audit", {}, "0 1 * * *", OPERATOR)
    monkeypatch.setattr(queue, "start", lambda *_, **__: schedules.remove(made.id) or job_of(id="run"))
    due(cron.Scheduler(connection=object())).enqueue_jobs()
    assert schedules.listing() == []


def test_while_the_run_before_is_at_work_the_next_is_left_out_and_says_so(started, user_of_role, monkeypatch):
    user_of_role("operator")
    made = schedules.add("audit", {}, "* * * * *", OPERATOR)
    scheduler = cron.Scheduler(connection=object())
    due(scheduler).enqueue_jobs()
    due(scheduler).enqueue_jobs()
    assert len(started) == 1
    assert schedules.listing()[0].last_problem == "left out: the previous run is running"
    monkeypatch.setattr(queue, "find", lambda run_id: job_of(state="failed"))
    due(scheduler).enqueue_jobs()
    assert len(started) == 2 and schedules.listing()[0].last_problem is None
    # Its record may be gone after its time; Redis may not answer at all.
    for code, count in (("not_found", 3), ("jobs_unavailable", 3)):
        monkeypatch.setattr(
            queue,
            "find",
            lambda run_id, code=code: (_ for _ in ()).throw(Problem(code, "Redis does not answer")),
        )
        due(scheduler).enqueue_jobs()
        assert len(started) == count
    assert PipelineSchedule.objects.get(pk=made.id).last_problem == "Redis does not answer"


def test_whoever_may_start_nothing_any_more_starts_nothing_by_a_schedule(started, user_of_role):
    user = user_of_role("operator")
    token, _ = tokens.issue("nightly", "operator", "user:root")
    for caller in (OPERATOR, Caller("token:nightly", "operator"), Caller("local:me", "admin")):
        schedules.add("audit", {}, "0 1 * * *", caller)
    scheduler = cron.Scheduler(connection=object())
    due(scheduler).enqueue_jobs()
    assert [(caller.name, caller.role) for _, _, caller, _ in started] == [
        ("user:the-operator", "operator"),
        ("token:nightly", "operator"),
        ("local:me", "admin"),
    ]
    user.groups.clear()
    tokens.revoke(token)
    PipelineSchedule.objects.update(last_run="")
    del started[:]
    due(scheduler).enqueue_jobs()
    assert [caller.name for _, _, caller, _ in started] == ["local:me"]
    assert [one.last_problem for one in schedules.listing()] == [
        "user:the-operator may not start runs any more",
        "token:nightly may not start runs any more",
        None,
    ]


def test_one_made_just_before_it_is_due_is_due_also_when_it_is_seen_just_after(monkeypatch):
    minute_ms = 29_833_334 * 60_000
    monkeypatch.setattr("mqadmin.jobs.cron.time.time", lambda: minute_ms / 1000 + 3)
    young, old = (
        PipelineSchedule(pk=1, job="audit", cron="* * * * *", created_ms=minute_ms - ago)
        for ago in (1_000, 3_600_000)
    )
    assert cron._due(young).next_enqueue_time.timestamp() * 1000 == minute_ms
    assert cron._due(old).next_enqueue_time > now()  # a run that was due while it did not run is left out


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tomorrow",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "0 0 30 2 *",
        "0 0 * * 9",
        "* * * * *" + " " * 200 + "x" * 90,
    ],
)
def test_what_is_no_cron_expression_or_never_comes_is_refused(text):
    with pytest.raises(Problem) as refused:
        schedules.add("audit", {}, text, OPERATOR)
    assert refused.value.code == "invalid"
    assert schedules.listing() == []


def test_parameters_are_those_of_the_job_and_there_is_an_end_to_schedules(monkeypatch):
    for job, parameters in (("audit", {"key": "k"}), ("lineage", {}), ("archive", {"out": "/etc"})):
        with pytest.raises(Problem):
            schedules.add(job, parameters, "0 1 * * *", OPERATOR)
    monkeypatch.setattr(schedules, "MAX_SCHEDULES", 1)
    schedules.add("audit", {}, "0 1 * * *", OPERATOR)
    with pytest.raises(Problem, match="there are 1 schedules"):
        schedules.add("audit", {}, "0 1 * * *", OPERATOR)


def test_an_operator_adds_and_removes_one_on_the_page_and_a_viewer_sees_it(
    fake_cluster, client_of_role, monkeypatch
):
    monkeypatch.setattr(queue, "listing", lambda: [])
    operator, viewer = client_of_role("operator"), client_of_role("viewer")
    form = {
        "job": "statistics",
        "cron": "30 2 * * *",
        "topic": "orders",
        "key": "left over from another choice",
    }
    assert operator.post("/pipeline/schedules/add", form).status_code == 302
    [made] = schedules.listing()
    assert (made.job, made.parameters, made.created_by) == (
        "statistics",
        {"topic": "orders"},
        "user:the-operator",
    )
    seen = viewer.get("/pipeline/").content.decode()
    assert "30 2 * * *" in seen and "Remove" not in seen and "Add the schedule" not in seen
    assert (
        "is no cron expression"
        in operator.post("/pipeline/schedules/add", form | {"cron": "soon"}, follow=True).content.decode()
    )
    assert viewer.post(f"/pipeline/schedules/{made.id}/remove").status_code == 403
    assert operator.post(f"/pipeline/schedules/{made.id}/remove").status_code == 302
    assert schedules.listing() == []


def test_rest_lists_adds_and_removes(fake_cluster, client_of_role):
    operator = client_of_role("operator")
    headers = {"HTTP_X_CSRFTOKEN": "c" * 32}
    operator.cookies["csrftoken"] = "c" * 32
    answer = operator.post(
        "/api/v1/pipeline/schedules",
        {"job": "lineage", "cron": "0 1 * * *", "parameters": {"key": "k", "begin_ms": "5"}},
        content_type="application/json",
        **headers,
    )
    assert answer.status_code == 201, answer.content
    made = answer.json()
    assert (made["job"], made["parameters"], made["last_run"]) == (
        "lineage",
        {"key": "k", "begin_ms": 5},
        None,
    )
    assert int(made["next_ms"]) > int(made["created_ms"])
    assert operator.get("/api/v1/pipeline/schedules").json()["items"] == [made]
    assert operator.delete(f"/api/v1/pipeline/schedules/{made['id']}", **headers).status_code == 204
    assert operator.get("/api/v1/pipeline/schedules").json()["items"] == []
