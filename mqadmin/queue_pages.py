"""The guard of django-rq's pages of queues and workers. Those pages check no roles, write no audit
records, and fail without Redis.

Administrators only; each change leaves one record, with the kinds and parameters of its jobs.
These pages start a job again at a click. A kind that cannot be undone (`Kind.confirms`) needs a typed name
wherever it is started. So it is left out here, and the answer has a link to the page that asks for the name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.http import url_has_allowed_host_and_scheme
from django_rq.queues import get_queue_by_index
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeout
from rq import Worker, requeue_job
from rq.command import send_stop_job_command
from rq.exceptions import InvalidJobOperation, NoSuchJobError
from rq.job import JobStatus

from broker_store.errors import NameError_
from broker_store.formats.names import check_group
from broker_store.rest.problems import Problem
from broker_store.units import fact_of
from mqadmin import audit
from mqadmin.jobs import kinds, queue
from mqadmin.jobs.worker import AllowedJob
from mqadmin.views.query_parameters import refusal_alone, refusals
from mqadmin.web import roles
from mqadmin.web.admin_site import OF_QUEUES, unavailable

# The views of these pages that change something when they are posted; the others show a page, also the one
# that asks for a confirmation.
CHANGES = (
    "delete_failed_jobs",
    "clear",
    "requeue_all",
    "delete_job",
    "requeue_job",
    "enqueue_job",
    "stop_job",
    "actions",
)
START_AGAIN = ("requeue_job", "enqueue_job")  # one job, by its address
# Of a bulk action in its record, so that the record stays below audit.MAX_DETAIL.
MAX_IDS = 20
MAX_ID_CHARACTERS = 40
MAX_DESCRIBED = 8
MAX_PARAMETERS_CHARACTERS = 200

UNDER_WAY = "The job runs, or waits for a worker, already: started again it would run twice."

View = Callable[..., HttpResponse]
Record = dict[str, object]  # of a change: keys of any name


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The queue and the job of an address of these pages; None where the address names none."""

    queue_index: int | None
    job_id: str | None
    key: str | None  # of a worker, in Redis


def guarded(view: View, name: str) -> View:
    """Return one of django-rq's views, with its name there, guarded."""

    @functools.wraps(view)
    def guard(request: HttpRequest, *arguments: Any, **named: Any) -> HttpResponse:
        if not request.user.is_authenticated:
            return redirect_to_login(request.get_full_path())
        if not roles.is_admin(request):
            raise PermissionDenied
        if wrong := refusals(request.GET, OF_QUEUES):
            return refusal_alone(request, list(wrong.values()))
        try:
            address = fact_of(Address, named)
            if request.method != "POST" or name not in CHANGES:
                with _problems():
                    _check_address(address)
                    return view(request, *arguments, **named)
            caller, asked = roles.caller_of(request.user), {"queue": address.queue_index, **_asked(request)}
            with (
                audit.audited(caller, name, "job", address.job_id or "", **asked) as record,
                _problems(),
            ):
                _check_address(address)
                return _change(lambda: view(request, **named), name, request, address, record)
        except _Refused as problem:
            return unavailable(request, problem, address=problem.address, link=problem.link)
        except Problem as problem:
            return unavailable(request, problem)

    return guard


def _asked(request: HttpRequest) -> dict[str, object]:
    """Return what the form of a bulk action says, for its record."""
    asked: dict[str, object] = {}
    if "action" in request.POST:
        asked |= {"action": request.POST["action"][:MAX_ID_CHARACTERS]}
    if ids := request.POST.getlist("job_ids"):
        asked |= {"job_ids": [job_id[:MAX_ID_CHARACTERS] for job_id in ids[:MAX_IDS]], "items": len(ids)}
    return asked


@contextmanager
def _problems() -> Iterator[None]:
    """Raise what rq and Redis raise as a Problem."""
    try:
        yield
    except NoSuchJobError:
        raise Problem(
            "not_found",
            "There is no such job (any more).",
            "The list of its queue shows those that there are.",
        ) from None
    except InvalidJobOperation:
        raise Problem(
            "conflict",
            "The job's state does not allow this: only a job that failed can be requeued.",
            "Its page shows its state.",
        ) from None
    except (RedisConnectionError, RedisTimeout):
        raise Problem("jobs_unavailable", "Redis does not answer.") from None
    except RedisError as error:
        raise Problem("jobs_unavailable", f"Redis refuses what was asked: {error}.") from None


def _check_address(address: Address) -> None:
    """Raise Problem for a queue or a worker that is not there: the views would fail at it."""
    queues = list(settings.RQ_QUEUES)
    index = address.queue_index or 0
    if not index < len(queues):
        raise Problem(
            "not_found",
            "There is no queue of this number.",
            f"Queues are numbered from 0: {', '.join(queues)}.",
        )
    if address.key is not None and not _worker_exists(index, address.key):
        raise Problem(
            "not_found",
            "There is no such worker (any more).",
            "The list of its queue shows those that there are.",
        )


def _worker_exists(queue_index: int, key: str) -> bool:
    return key.startswith(Worker.redis_worker_namespace_prefix) and bool(
        get_queue_by_index(queue_index).connection.exists(key)
    )


def _change(
    answer: Callable[[], HttpResponse], name: str, request: HttpRequest, address: Address, record: Record
) -> HttpResponse:
    """Return the view's `answer()`. The jobs are described in `record`. Those that need a typed name
    are not started again."""
    index = address.queue_index or 0
    if name == "requeue_all":
        return _requeue_all(request, index, record)
    if name == "actions":
        return _act_on_chosen(answer, request, index, record)
    if address.job_id is not None:
        job = _fetch(index, address.job_id)
        record |= _described(job)
        if name == "stop_job":
            _stop(request, index, [job], record)
            return redirect("admin:django_rq_job_detail", index, job.id)
        if name in START_AGAIN and _wants_name(job):
            raise _Refused([job])
        if name in START_AGAIN:
            if _is_under_way(job):
                raise Problem("conflict", UNDER_WAY, "Stop it first, or wait for its end.")
            queue.room()
    return answer()


def _is_under_way(job: AllowedJob) -> bool:
    return job.get_status(refresh=False) in (JobStatus.STARTED, JobStatus.QUEUED)


def _stop(request: HttpRequest, queue_index: int, found: list[AllowedJob], record: Record) -> None:
    """Have the workers of running jobs stop them. Raises Problem where none of the jobs runs."""
    queue, asked = get_queue_by_index(queue_index), 0
    for job in found:
        if job.get_status(refresh=False) is not JobStatus.STARTED:
            continue
        try:
            send_stop_job_command(queue.connection, job.id, serializer=queue.serializer)
            asked += 1
        except (InvalidJobOperation, NoSuchJobError):  # it ended meanwhile
            continue
    if not asked:
        raise Problem(
            "conflict",
            "The job does not run." if len(found) == 1 else "None of the chosen jobs runs.",
            "Only a running job can be stopped.",
        )
    record["told_to_stop"] = asked
    messages.info(request, f"{asked} of {len(found)} jobs are being stopped.")


def _act_on_chosen(
    answer: Callable[[], HttpResponse], request: HttpRequest, queue_index: int, record: Record
) -> HttpResponse:
    """Run django-rq's bulk action on those of the chosen jobs that are there and may be started again
    here."""
    ids = request.POST.getlist("job_ids")
    found = _fetch_many(queue_index, ids)
    if ids and not found:
        raise Problem(
            "not_found",
            "None of the chosen jobs is there (any more).",
            "The list of their queue shows those that there are.",
        )
    action = request.POST.get("action")
    if found and action == "requeue":
        found = _startable(request, found, record)
    record["jobs"] = [{"id": job.id, **_described(job)} for job in found[:MAX_DESCRIBED]]
    posted = request.POST.copy()
    posted.setlist("job_ids", [job.id for job in found])
    if not url_has_allowed_host_and_scheme(posted.get("next_url"), request.get_host()):
        posted.pop("next_url", None)
    request.POST = posted
    if found and action == "stop":
        _stop(request, queue_index, found, record)
        return redirect(posted.get("next_url") or reverse("admin:django_rq_jobs", args=[queue_index]))
    return answer()


def _requeue_all(request: HttpRequest, queue_index: int, record: Record) -> HttpResponse:
    """Start those failed jobs again that may be started again here, as django-rq does it: its view takes no
    choice of them."""
    queue = get_queue_by_index(queue_index)
    found = _fetch_many(queue_index, queue.failed_job_registry.get_job_ids())
    chosen = _startable(request, found, record) if found else []
    record |= {
        "items": len(chosen),
        "jobs": [{"id": job.id, **_described(job)} for job in chosen[:MAX_DESCRIBED]],
    }
    count = 0
    for job in chosen:
        try:
            requeue_job(job.id, connection=queue.connection, serializer=queue.serializer)
            count += 1
        except (InvalidJobOperation, NoSuchJobError):  # another request was first
            continue
    messages.info(request, f"You have successfully requeued {count} job{'' if count == 1 else 's'}!")
    return redirect("admin:django_rq_jobs", queue_index)


def _startable(request: HttpRequest, found: list[AllowedJob], record: Record) -> list[AllowedJob]:
    """Return those that may be started again here; a message and the record name the others. Raises Problem
    when there are none."""
    if under_way := [job for job in found if _is_under_way(job)]:
        record["under_way"] = [job.id for job in under_way[:MAX_DESCRIBED]]
        if len(under_way) == len(found):
            raise Problem("conflict", UNDER_WAY, "Stop it first, or wait for its end.")
        messages.warning(
            request, f"Left out {len(under_way)} of {len(found)} jobs, which run or wait already."
        )
        found = [job for job in found if not _is_under_way(job)]
    left_out = [job for job in found if _wants_name(job)]
    if not left_out:
        return _within_waiting_limit(request, found, record)
    record["left_out"] = [job.id for job in left_out[:MAX_DESCRIBED]]
    if len(left_out) == len(found):
        raise _Refused(left_out)
    where = {_where(job) for job in left_out}
    links = format_html_join(", ", '<a href="{}">{}</a>', sorted(where))
    sentence = (
        "Left out {} of {} jobs: they cannot be undone, so their name must be typed. Start them here: {}."
    )
    messages.warning(request, format_html(sentence, len(left_out), len(found), links))
    return _within_waiting_limit(request, [job for job in found if not _wants_name(job)], record)


def _within_waiting_limit(request: HttpRequest, found: list[AllowedJob], record: Record) -> list[AllowedJob]:
    """Return the first of them, as many as may wait beside those that do; a message and the record count the
    others. Raises Problem where none may."""
    room = queue.room()
    if len(found) > room:
        record["no_room"] = len(found) - room
        messages.warning(
            request,
            f"Left out {len(found) - room} of {len(found)} jobs: at most {queue.MAX_WAITING} jobs may wait.",
        )
    return found[:room]


class _Refused(Problem):
    """Jobs that are not started again here; the answer has the address of the page that asks for the name of
    the first."""

    def __init__(self, refused: list[AllowedJob]):
        self.address, self.link = _where(refused[0])
        kind = refused[0].kind
        assert kind is not None  # `_wants_name` says so
        detail = (
            f"“{kinds.KINDS[kind].title}” cannot be undone, so its name must be typed, which "
            f"this page does not ask for."
        )
        super().__init__("confirmation_needed", detail, "Start it where the name is asked for.")


def _wants_name(job: AllowedJob) -> bool:
    return job.kind is not None and bool(kinds.KINDS[job.kind].confirms)


def _where(job: AllowedJob) -> tuple[str, str]:
    """Return (address, text) of the page that starts a job of this kind and asks for its name."""
    try:
        group = check_group(queue.parameters_of(job).get("group", ""))
    except (NameError_, TypeError):
        return reverse("jobs"), "Jobs"
    return reverse("dead_letters", args=[group]), f"Dead letters of {group}"


def _described(job: AllowedJob) -> Record:
    """Return the kind and parameters of a job, for a record."""
    parameters = queue.parameters_of(job)
    return {
        "kind": job.kind or "unknown",
        "parameters": parameters if len(str(parameters)) <= MAX_PARAMETERS_CHARACTERS else {"cut": True},
    }


def _fetch(queue_index: int, job_id: str) -> AllowedJob:
    queue = get_queue_by_index(queue_index)
    job = AllowedJob.fetch(job_id, connection=queue.connection, serializer=queue.serializer)
    assert isinstance(job, AllowedJob)
    return job


def _fetch_many(queue_index: int, ids: Iterable[str]) -> list[AllowedJob]:
    """Return those that are there, each once."""
    queue = get_queue_by_index(queue_index)
    found = AllowedJob.fetch_many(
        list(dict.fromkeys(ids)), connection=queue.connection, serializer=queue.serializer
    )
    return [job for job in found if isinstance(job, AllowedJob)]
