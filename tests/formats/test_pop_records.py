"""formats.pop_records: pop checkpoints and acknowledgements, as a real 5.3.3 broker wrote them."""

import ast
import json
import re
from pathlib import Path

import pytest

from broker_store.errors import FormatError
from broker_store.formats import pop_records
from broker_store.formats.pop_records import PopCheckpoint, PopKey

RECORDS = Path(__file__).parent.parent / "golden" / "stores" / "golden-clean.records.txt"
KEY = PopKey("TopicX", "CGP", 1, 0, 1795245700807, "broker-a")


def golden(tag: str) -> list[tuple[bytes, str]]:
    """(body, unique key) of the golden store's records with a tag."""
    lines = [line for line in RECORDS.read_text().splitlines() if f" TAGS={tag} " in line]
    found = [
        (ast.literal_eval(re.search(r" (b'.*?') ", line)[1]), re.search(r" UNIQ_KEY=(\S+)", line)[1])
        for line in lines
    ]
    assert found
    return found


def test_golden_checkpoints_are_read_and_written_byte_by_byte():
    for body, unique_key in golden("ck"):
        checkpoint = pop_records.decode_checkpoint(body)
        assert pop_records.encode_checkpoint(checkpoint) == body
        assert pop_records.checkpoint_id(checkpoint.key) == unique_key
    (three,) = {body for body, _ in golden("ck") if b'"n":3' in body}
    assert pop_records.decode_checkpoint(three) == PopCheckpoint(KEY, 15_000, (0, 1, 2))


def test_golden_acks_are_read_and_written_byte_by_byte():
    for body, unique_key in golden("ack"):
        ack = pop_records.decode_ack(body)
        (offset,) = ack.offsets
        assert pop_records.encode_ack(ack.key, offset) == body
        assert pop_records.ack_id(ack.key, offset) == unique_key


def test_a_batch_has_its_offsets_in_a_list():
    body = pop_records.encode_batch_ack(KEY, [4, 7])
    assert body == (
        b'{"ao":0,"aol":[4,7],"bn":"broker-a","c":"CGP","pt":1795245700807,"q":1,"so":0,"t":"TopicX"}'
    )
    assert pop_records.decode_ack(body) == (KEY, (4, 7))
    assert pop_records.batch_ack_id(KEY, [4, 7]) == "TopicX@1@[4, 7]@CGP@1795245700807@bAck"


def test_messages_are_found_by_their_offsets():
    checkpoint = PopCheckpoint(KEY._replace(start_offset=10), 500, (0, 3, 4))
    assert [checkpoint.index_of(offset) for offset in (9, 10, 11, 13, 14, 15)] == [None, 0, None, 1, 2, None]
    assert checkpoint.revive_ms == KEY.pop_ms + 500


def test_old_checkpoints_without_a_list_and_a_broker_are_read():
    body = b'{"bm":2,"c":"g","it":1,"n":3,"pt":5,"q":0,"so":7,"t":"T"}'
    assert pop_records.decode_checkpoint(body) == PopCheckpoint(
        PopKey("T", "g", 0, 7, 5, ""), 1, (0, 1, 2), 2
    )


def test_a_checkpoint_that_was_stored_again_keeps_its_count():
    checkpoint = PopCheckpoint(KEY, 1, (0,), 0, "2")
    body = pop_records.encode_checkpoint(checkpoint)
    assert b'"ro":0,"rp":"2","so":0' in body and pop_records.decode_checkpoint(body) == checkpoint


GOOD = {"bm": 0, "bn": "b", "c": "g", "d": [0], "it": 1, "n": 1, "pt": 5, "q": 0, "so": 7, "t": "T"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"d": [-1]},
        {"d": [1 << 31]},
        {"d": ["0"]},
        {"d": 3},
        {"d": list(range(33))},
        {"d": [], "n": 0},
        {"n": 200},
        {"t": ""},
        {"t": None},
        {"c": 5},
        {"q": -1},
        {"pt": 1 << 64},
        {"so": 1.5},
        {"it": True},
        {"bm": None},
        {"x": "y" * pop_records.MAX_BYTES},
    ],
)
def test_wrong_checkpoints_are_refused(wrong):
    body = json.dumps(GOOD | wrong).encode()
    with pytest.raises(FormatError):
        pop_records.decode_checkpoint(body)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"5", b"{", b"\xff", b"[" * 10_000, b'{"ao":NaN}', b'{"aol":[1.5]}']
)
def test_what_is_no_record_is_refused(body):
    for decode in (pop_records.decode_checkpoint, pop_records.decode_ack):
        with pytest.raises(FormatError):
            decode(body)
