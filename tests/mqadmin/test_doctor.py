"""The store doctor in the dashboard: runs, findings with meaning and bytes, the plan and how to have it
done."""

from __future__ import annotations

import html
import json
from types import SimpleNamespace

import pytest

from broker_store.units import document_of
from mqadmin.jobs import queue
from mqadmin.jobs.runs import check_store
from mqadmin.views.store.doctor import facts as checks
from mqadmin.views.store.doctor.page import link_of
from tests.support import fake_runs, stores

pytestmark = pytest.mark.django_db


@pytest.fixture
def runs(fake_cluster, monkeypatch):
    fake_runs.install(monkeypatch.setattr)


def text_of(answer) -> str:
    assert answer.status_code == 200
    return html.unescape(answer.content.decode())


def test_the_page_shows_the_newest_run_and_each_finding_with_its_grade_its_meaning_and_its_bytes(
    runs, client_of_role
):
    client = client_of_role("operator")
    assert "log, 3 found" in text_of(client.get("/store/doctor/"))
    text = text_of(client.get("/store/doctor/check-bad/"))
    for finding in fake_runs.check_result(fake_runs.CHECK_FINDINGS)["findings"]:
        assert finding["what"][1:] in text and finding["means"] in text and finding["repair"] in text
    assert (
        text.index("bad-record")
        < text.index("index-chain")
        < text.index("torn-tail")
        < text.index("log-start")
    )
    assert f"/store/bytes/?kind=commitlog&offset={67_108_864 + 41_220}" in text
    assert "1.5 MiB of missing or damaged bytes held records that no queue names" in text
    assert (
        "manage.py check_store --apply" in text and "Bridge 292 damaged bytes" in text and "stop it" in text
    )
    assert "agrees with the others" in text_of(client.get("/store/doctor/check-good/"))
    assert "STORE is no store directory" in text_of(client.get("/store/doctor/check-failed/"))
    assert client.get("/store/doctor/audit/").status_code == 404  # a run of another kind
    assert "Start a check" not in text_of(client_of_role("viewer").get("/store/doctor/"))


def test_a_result_of_another_version_is_named_as_such(runs, client_of_role, monkeypatch):
    monkeypatch.setattr(checks, "result_of", lambda kind, job: None)
    text = text_of(client_of_role("viewer").get("/store/doctor/check-good/"))
    assert "Its result cannot be read" in text and "agrees with the others" not in text


def test_bytes_of_every_kind_of_file_have_a_link():
    assert (
        link_of("consumequeue/orders/3/00000000000000006000", 40)
        == "/store/bytes/?kind=consumequeue&topic=orders&queue=3&offset=6040"
    )
    assert (
        link_of("index/20261121081502113", 44) == "/store/bytes/?kind=index&name=20261121081502113&offset=44"
    )
    assert link_of("checkpoint", 8) == "/store/bytes/?kind=checkpoint&offset=8"
    assert link_of("config/topics.json", 0) is None and link_of("index/20261121081502113", None) is None


def test_rest_has_the_runs_their_findings_and_the_plan(runs, client_of_role):
    client = client_of_role("viewer")
    listed = client.get("/api/v1/store/checks").json()["items"]
    assert [run["id"] for run in listed] == list(fake_runs.CHECKS) and "findings" not in listed[0]
    assert listed[1]["grades"] == {"harmless": "1", "next start": "2", "repair": "4", "lost": "1"}
    run = client.get("/api/v1/store/checks/check-bad").json()
    assert (run["state"], run["findings"][0]["grade"], run["findings"][0]["offset"]) == (
        "done",
        "lost",
        "41220",
    )
    plan = client.get("/api/v1/store/checks/check-bad/plan").json()
    assert plan["command"] == "manage.py check_store --apply" and [
        action["action"] for action in plan["actions"]
    ] == ["checkpoint", "bridge", "move", "rebuild"]
    assert client.get("/api/v1/store/checks/check-running/plan").status_code == 404
    assert client.get("/api/v1/store/checks/audit").status_code == 404


def test_a_run_is_started_by_an_operator_and_stopped_from_its_page(runs, client_of_role, monkeypatch):
    started = []
    monkeypatch.setattr(
        queue,
        "start",
        lambda kind, parameters, caller: (
            started.append((kind, parameters)) or fake_runs.check("check-running")
        ),
    )
    monkeypatch.setattr(queue, "cancel", lambda job_id, caller: started.append(("cancel", job_id)))
    client = client_of_role("operator")
    assert client.post("/store/doctor/start")["Location"] == "/store/doctor/check-running/"
    assert (
        client.post("/jobs/check-running/cancel", {"next": "doctor"})["Location"]
        == "/store/doctor/check-running/"
    )
    assert client.post("/api/v1/store/checks").status_code == 202
    assert started == [("check_store", {}), ("cancel", "check-running"), ("check_store", {})]
    assert client_of_role("viewer").post("/store/doctor/start").status_code == 403


def test_who_watches_a_run_sees_how_far_it_is_and_what_it_found(runs):
    frame = checks.watched("check-running")
    assert (frame.run.progress.text, frame.findings) == ("log, 3 found", [])
    frame = checks.watched("check-bad")
    assert frame.findings[0] == checks.BriefFinding(
        grade="lost",
        kind="bad-record",
        file="commitlog/00000000000067108864",
        offset=41_220,
        what=fake_runs.CHECK_FINDINGS[0].what,
    )
    assert frame.mark != checks.watched("check-good").mark


def test_the_job_tells_of_a_crashed_store_that_is_only_looked_at_without_where_it_lies(tmp_path, settings):
    root = stores.unpack_variant("bitflip-early", tmp_path)
    settings.DATA_DIRECTORY = tmp_path
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "broker.json").write_text(json.dumps({"store": str(root), "inspect": True}))
    found = check_store()
    (finding,) = found.findings
    assert (finding.kind, finding.grade, finding.offset) == ("bad-record", "lost", 2216)
    assert "bridge" in {action.action for action in found.plan.actions}
    assert str(tmp_path) not in json.dumps(document_of(found))


def test_what_may_come_back_is_not_shown_as_lost(runs, client_of_role, monkeypatch):
    """Where a log is missing its files may be put back, so a repair can do nothing and the page names no
    message as lost for good."""
    result = fake_runs.check_result(fake_runs.CHECK_FINDINGS)
    result["plan"] |= {
        "actions": [],
        "left": ["There is no log file, but the store had a log. Put the files of the log back."],
    }
    monkeypatch.setattr(fake_runs, "check_result", lambda findings: result)
    fake_runs.install(monkeypatch.setattr)
    text = text_of(client_of_role("operator").get("/store/doctor/check-bad/"))
    assert (
        "A repair can do nothing: There is no log file" in text
        and "What is lost" not in text
        and "Plan of a repair" not in text
    )


def test_what_a_check_of_another_version_found_is_not_known(monkeypatch):
    result = {"ok": False, "grades": {"lost": 1}}
    monkeypatch.setattr(
        queue, "last_done", lambda kind: None if result is None else SimpleNamespace(result=result)
    )
    assert checks.last_findings() is None
    result |= {"log_end": "0", "counts": {}, "kinds": {"bad-record": 1}}
    assert checks.last_findings() == 1
    result = None
    assert checks.last_findings() == 0
