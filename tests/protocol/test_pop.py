"""protocol.pop: receipts, offsets in answers, batches of acknowledgements."""

import pytest

from broker_store.errors import FieldError
from broker_store.protocol import fastjson, pop
from broker_store.protocol.pop import BatchAck, QueueOffsets, Receipt
from tests.support.wire_samples import sample

TEXT = "0 1795244468000 60000 0 0 broker-a 1 5"
RECEIPT = Receipt(0, 1795244468000, 60000, 0, 0, "broker-a", 1, 5)


def test_a_receipt_is_read_and_written():
    assert pop.read_receipt(TEXT) == RECEIPT and pop.write_receipt(RECEIPT) == TEXT
    short = TEXT.rpartition(" ")[0]
    assert pop.read_receipt(short) == RECEIPT._replace(offset=None)
    assert pop.write_receipt(RECEIPT._replace(offset=None)) == short
    assert pop.read_receipt(TEXT + " 5376") == RECEIPT  # as from Apache's proxy


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 2 3",
        TEXT + " " + "6" * 512,
        TEXT.replace("broker-a", ""),
        TEXT.replace(" 0 broker", " 3 broker"),
        "-1" + TEXT[1:],
        TEXT.replace("60000", "6e4"),
        TEXT.replace("60000", "9" * 30),
        "x" * 600,
    ],
)
def test_what_is_no_receipt_is_refused(text):
    with pytest.raises(FieldError):
        pop.read_receipt(text)


def test_offsets_are_written_as_the_golden_answers_have_them():
    queues = [QueueOffsets(0, 0, 0, [0]), QueueOffsets(0, 1, 0, [0, 1, 2]), QueueOffsets(0, 2, 0, [0, 1])]
    fields = sample("pop").values["extFields"]
    assert (pop.start_offset_info(queues[1:2]), pop.message_offset_info([QueueOffsets(0, 1, 0, [0])])) == (
        fields["startOffsetInfo"],
        fields["msgOffsetInfo"],
    )
    assert pop.start_offset_info(queues) == "0 0 0;0 1 0;0 2 0"
    assert pop.message_offset_info(queues) == "0 0 0;0 1 0,1,2;0 2 0,1"


def test_the_topic_of_a_kind():
    assert [pop.topic_of("T", "g", kind) for kind in range(3)] == ["T", "%RETRY%g_T", "%RETRY%g+T"]


ACK = {"t": "T", "c": "g", "r": "1", "so": 10, "q": 2, "rq": 3, "pt": 5, "it": 1000, "b": "BQI="}


def test_a_batch_is_read():
    body = fastjson.dumps({"brokerName": "b", "acks": [ACK, ACK | {"r": "0"}]})
    broker_name, (first, second) = pop.read_batch_ack(body)
    assert broker_name == "b"
    assert first == BatchAck("T", "g", 1, 10, 2, 3, 5, 1000, (0, 2, 9)) and second.kind == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"t": "../x"},
        {"t": ""},
        {"c": None},
        {"r": "5"},
        {"so": -1},
        {"q": "2"},
        {"pt": 1 << 63},
        {"b": 5},
        {"b": "?"},
        {"b": "/" * 88},
        {"b": "A" * 20_000},
    ],
)
def test_a_wrong_batch_is_refused(wrong):
    with pytest.raises(FieldError):
        pop.read_batch_ack(fastjson.dumps({"acks": [ACK | wrong]}))


@pytest.mark.parametrize("value", [{}, [], {"acks": 5}, {"acks": [5]}, {"acks": [ACK] * 4097}])
def test_what_is_no_batch_is_refused(value):
    with pytest.raises(FieldError):
        pop.read_batch_ack(fastjson.dumps(value))
