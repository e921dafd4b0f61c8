"""formats.traces: what clients write about their messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from broker_store.formats import traces

ID = "7F0000010A2318B4AAC2000000000001"


def body(*records: str) -> bytes:
    """Records with `|` between fields, as the Java client joins them."""
    return "".join(record.replace("|", "\x01") + "\x02" for record in records).encode()


# Kind, record as the client writes it, what is read of it.
RECORDS = [
    (f"Pub|1700|DefaultRegion|PG|Orders|{ID}|TagA|k1|127.0.0.1:10911|5|3|0|7F00|true", ("sent", 1700, "PG", 3, True, "sent it to Orders")),
    (f"Pub|1700|DefaultRegion|PG|Orders|{ID}|TagA|k1|127.0.0.1:10911|5|3|0|7F00|false|10.0.0.1", ("sent", 1700, "PG", 3, False, "could not send it to Orders")),
    (f"Pub|1700|DefaultRegion|PG|Orders|{ID}|TagA|k1|127.0.0.1:10911|5|3|0|true", ("sent", 1700, "PG", 3, True, "sent it to Orders")),
    (f"SubBefore|1800|null|CG|REQ|{ID}|0|k1", ("handed", 1800, "CG", None, None, "was given it")),
    (f"SubBefore|1800|null|CG|REQ|{ID}|1|null|10.0.0.1", ("handed", 1800, "CG", None, None, "was given it again, for the 2nd time")),
    (f"SubAfter|REQ|{ID}|9|true|k1|0|1900|CG", ("consumed", 1900, "CG", 9, True, "consumed it")),
    (f"SubAfter|REQ|{ID}|9|false|k1|4|1900|CG", ("consumed", 1900, "CG", 9, False, "asked for it again")),
    (f"SubAfter|REQ|{ID}|9|false|k1|1", ("consumed", None, "", 9, False, "did not finish it in time")),
    (f"EndTransaction|2000|null|PG|Orders|{ID}|TagA|k1|host|2|TX|ROLLBACK_MESSAGE|true", ("ended", 2000, "PG", None, None, "rolled it back when it was asked")),
    (f"Recall|2100|null|PG|Orders|{ID}|true", ("recalled", 2100, "PG", None, True, "took it back")),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), RECORDS)
def test_each_kind_of_record_is_read(text, expected):
    (event,) = traces.decode(body(text))
    assert event.message_id == ID
    assert (event.kind, event.at_ms, event.group, event.took_ms, event.success, event.words) == expected


def test_a_body_holds_many_records_and_what_is_none_is_left_out():
    found = traces.decode(
        body("Pub|short", RECORDS[3][0], "Nothing|1|2|3|4|5|6|7|8|9|10|11|12", RECORDS[5][0]) + b"\xff\xfe"
    )
    assert [event.kind for event in found] == ["handed", "consumed"]
    assert {event.request_id for event in found} == {"REQ"}


def test_events_stand_in_the_order_of_their_times():
    later, first, consumed, timeless = (traces.decode(body(RECORDS[place][0]))[0] for place in (8, 0, 5, 7))
    handed = traces.decode(body(RECORDS[3][0]))[0]
    assert traces.in_order([later, timeless, handed, first]) == [first, handed, timeless, later]
    assert traces.in_order([consumed._replace(at_ms=1800), handed]) == [handed, consumed._replace(at_ms=1800)]


@pytest.mark.parametrize(
    ("tries", "words"), [(2, "3rd"), (3, "4th"), (10, "11th"), (11, "12th"), (20, "21st")]
)
def test_tries_are_counted_in_words(tries, words):
    (event,) = traces.decode(body(f"SubBefore|1|r|CG|R|{ID}|{tries}|k"))
    assert event.words == f"was given it again, for the {words} time"


@given(
    some.binary()
    | some.lists(
        some.sampled_from(["Pub", "SubAfter", "EndTransaction", "\x01", "\x02", "9" * 30, "true", "²"])
    ).map(lambda parts: "\x01".join(parts).encode())
)
def test_no_body_is_an_error(data):
    for event in traces.decode(data):
        assert event.at_ms is None or event.at_ms >= 0
