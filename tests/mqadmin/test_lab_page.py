"""The page of the crash lab shows what a run found, and says when another version wrote it."""

from __future__ import annotations

import pytest

from broker_store.lab.experiment import Outcome
from broker_store.units import document_of
from mqadmin.jobs import queue
from mqadmin.views.store.recoveries import facts as recoveries
from tests.support.fake_runs import job_of

pytestmark = pytest.mark.django_db
OUTCOME = Outcome(
    point="after-copy",
    flush="SYNC_FLUSH",
    power_cut="lost",
    messages=200,
    seed=1,
    killed="after the copy",
    killed_in=None,
    recovery="1",
    sent=4_201,
    acknowledged=4_102,
    there=4_102,
    lost=0,
    there_unacknowledged=1,
    kept_its_word=True,
    sentence="Nothing that was acknowledged is lost.",
    check_ok=True,
    check_findings=0,
    lost_messages=[],
    store="lab/some-job/store",
)


@pytest.fixture
def pages(fake_cluster, client_of_role, monkeypatch):
    """Returns the list and the page of a run with this result."""

    def get(result) -> list[str]:
        job = job_of(kind="crash_lab", title="Crash lab", state="done", result=result, ended_ms=2)
        monkeypatch.setattr(queue, "listing", lambda: [job])
        monkeypatch.setattr(queue, "find", lambda job_id: job)
        monkeypatch.setattr(recoveries, "of_lab", lambda run: None)
        client = client_of_role("viewer")
        answers = [client.get(f"/store/lab/{name}") for name in ("", "some-job/")]
        assert [answer.status_code for answer in answers] == [200, 200]
        return [answer.content.decode() for answer in answers]

    return get


def test_what_a_run_found_is_in_the_list_and_on_its_page(pages):
    listed, run = pages(document_of(OUTCOME))
    assert "4,102" in listed and "4,201" in run and OUTCOME.sentence in run
    assert "cannot be read" not in run


def test_a_result_of_another_version_is_named_as_such(pages):
    listed, run = pages({"acknowledged": 4_102})
    assert "4,102" not in listed and "Its result cannot be read" in run
