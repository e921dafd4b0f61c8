"""What came of a job, whatever its shape, as pairs and tables."""

from __future__ import annotations

from mqadmin.jobs.progress import read
from mqadmin.views.jobs.facts import _shown, share_of


def test_a_list_of_objects_is_a_table_with_units():
    facts, tables = _shown(
        {
            "topics": [{"topic": "orders", "messages": "1804221", "body_bytes": 2048, "seen": None}],
            "partitions": 3,
        }
    )
    assert facts == [("partitions", "3")]
    assert tables[0].columns == ["topic", "messages", "body bytes", "seen"]
    assert tables[0].rows == [["orders", "1,804,221", "2.0 KiB", None]]


def test_an_object_within_is_pairs_and_truth_is_a_word():
    facts, tables = _shown({"ok": True, "counts": {"log_files": 1, "log_bytes": 1024}, "findings": []})
    assert facts == [
        ("ok", "yes"),
        ("counts: log files", "1"),
        ("counts: bytes of log files, which are made with room for records to come", "1.0 KiB"),
        ("findings", "none"),
    ]
    assert tables == []


def test_what_names_a_record_is_no_count_and_no_error_is_not_an_unknown_one():
    facts, _ = _shown({"recovery": "1764000000123", "scanned_bytes": 2048, "error": None, "kind": None})
    assert facts == [("recovery", "1764000000123"), ("scanned bytes", "2.0 KiB"), ("kind", None)]
    assert _shown({"error": "the log cannot be read"})[0] == [("error", "the log cannot be read")]


def test_progress_is_a_share_only_when_both_ends_are_known():
    def row(progress):
        return share_of(read(progress))

    assert row({"done": 1, "total": 4}) == 25
    assert (
        row({"done": 1, "total": None}) is None and row(None) is None and row({"done": 0, "total": 0}) is None
    )
