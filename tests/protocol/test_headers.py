import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_store.errors import FieldError
from broker_store.protocol.codes import RequestCode
from broker_store.protocol.command import Command
from broker_store.protocol.headers import (
    PullHeader,
    SendHeader,
    read_header,
    read_long,
    read_pull,
    read_send,
    write_header,
    write_pull,
    write_send,
)

SEND = SendHeader("PG", "TopicX", "TBW102", 4, 1, 0, 1795244402607, 0, "TAGS\x01A\x02", 0, False, None, False)
PULL = PullHeader("CG", "TopicX", 1, 1 << 40, 32, 6, 0, 15000, "*", 1795244402607, "TAG", None)


@pytest.mark.parametrize("code", [10, 310, 320, 324, 325])
def test_a_send_header_survives_under_the_names_of_its_code(code):
    fields = write_send(SEND, code, broker_name="broker-a")
    assert ("a" in fields) == (code in (310, 320, 325))
    header = read_send(Command.request(code, fields))
    assert header == SEND._replace(batch=code == 320)
    assert (
        read_send(
            Command.request(code, write_send(SEND._replace(max_reconsume_times=3), code))
        ).max_reconsume_times
        == 3
    )


def test_what_a_send_may_leave_out_has_javas_defaults():
    fields = {"a": "PG", "b": "T", "c": "TBW102", "d": "4", "e": "-1", "f": "0", "g": "5", "h": "0"}
    header = read_send(Command.request(310, fields))
    assert (header.properties, header.reconsume_times, header.unit_mode, header.max_reconsume_times) == (
        "",
        0,
        False,
        None,
    )
    assert (header.queue_id, header.batch) == (-1, False)


@pytest.mark.parametrize(
    ("letter", "value", "word"),
    [
        ("a", None, "producerGroup"),
        ("b", None, "topic"),
        ("c", None, "defaultTopic"),
        ("d", "x", "defaultTopicQueueNums"),
        ("e", None, "queueId"),
        ("e", str(1 << 31), "queueId"),
        ("f", "", "sysFlag"),
        ("g", str(1 << 63), "bornTimestamp"),
        ("g", "9" * 5000, "bornTimestamp"),
        ("h", "1.5", "flag"),
        ("j", "many", "reconsumeTimes"),
        ("l", str(-(1 << 40)), "maxReconsumeTimes"),
    ],
)
def test_a_wrong_field_of_a_send_is_named(letter, value, word):
    fields = write_send(SEND)
    fields.pop(letter, None)
    if value is not None:
        fields[letter] = value
    with pytest.raises(FieldError) as caught:
        read_send(Command.request(310, fields))
    assert caught.value.name == word


def test_a_pull_header_survives():
    assert read_pull(Command.request(11, write_pull(PULL))) == PULL
    assert read_pull(Command.request(11, write_pull(PULL._replace(max_msg_bytes=7)))).max_msg_bytes == 7


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("consumerGroup", None),
        ("queueId", None),
        ("queueId", "a"),
        ("queueOffset", str(1 << 63)),
        ("subVersion", "?"),
    ],
)
def test_a_wrong_field_of_a_pull_is_named(name, value):
    fields = write_pull(PULL)
    fields.pop(name, None)
    if value is not None:
        fields[name] = value
    with pytest.raises(FieldError) as caught:
        read_pull(Command.request(11, fields))
    assert caught.value.name == name


def test_a_header_is_read_by_its_types():
    fields = {
        "consumerGroup": "g",
        "topic": "t",
        "queueId": "3",
        "setZeroIfNotFound": "FALSE",
        "bname": "broker-a",
    }
    header = read_header(RequestCode.QUERY_CONSUMER_OFFSET, fields)
    assert header == ("g", "t", 3, False)
    assert header.set_zero_if_not_found is False
    assert read_header(35, {"clientID": "c"}).client_id == "c"
    assert (
        read_header(
            12,
            {
                "topic": "t",
                "key": "k",
                "maxNum": "1",
                "beginTimestamp": "0",
                "endTimestamp": "9",
                "_UNIQUE_KEY_QUERY": "true",
            },
        ).unique_key_query
        is True
    )


def test_a_header_is_written_under_its_wire_names():
    fields = write_header(
        RequestCode.UPDATE_CONSUMER_OFFSET, consumer_group="g", topic="t", queue_id=0, commit_offset=7
    )
    assert fields == {"consumerGroup": "g", "topic": "t", "queueId": "0", "commitOffset": "7"}
    with pytest.raises(FieldError):
        write_header(RequestCode.GET_MAX_OFFSET, topic="t")
    with pytest.raises(TypeError):
        write_header(RequestCode.GET_MAX_OFFSET, topic="t", queue_id=0, queue=0)


@pytest.mark.parametrize(
    "fields", [None, {}, {"topic": "t"}, {"topic": "t", "queueId": "x"}, {"topic": "t", "queueId": "1" * 99}]
)
def test_a_missing_or_wrong_field_is_refused(fields):
    with pytest.raises(FieldError):
        read_header(RequestCode.GET_MAX_OFFSET, fields)


@pytest.mark.parametrize("text", ["1_0", " 1", "1 ", "1\n", "٣", "", "+", "-", "+-1", "1e3", "0x1"])
def test_a_number_that_java_refuses_is_refused(text):
    with pytest.raises(FieldError):
        read_long("offset", text)


@pytest.mark.parametrize(
    ("text", "number"), [("+7", 7), ("-7", -7), ("007", 7), (str(-(1 << 63)), -(1 << 63))]
)
def test_a_number_that_java_reads_is_read(text, number):
    assert read_long("offset", text) == number


def test_a_missing_field_is_called_missing():
    with pytest.raises(FieldError, match="^field topic is missing, expected a value"):
        read_header(RequestCode.GET_MAX_OFFSET, {"queueId": "0"})
    with pytest.raises(FieldError, match="^field producerGroup is missing, expected a value"):
        read_send(Command.request(RequestCode.SEND_MESSAGE_V2, {"b": "t"}))


@given(
    st.sampled_from([10, 11, 30, 103, 310, 17]),
    st.dictionaries(
        st.sampled_from("a b c d e f g h i j k l m topic queueId sysFlag".split()) | st.text(max_size=5),
        st.text(max_size=25),
    ),
)
def test_any_fields_are_a_header_or_a_field_error(code, fields):
    command = Command.request(code, fields)
    try:
        read_send(command) if code in (10, 310) else read_pull(command) if code == 11 else read_header(
            code, fields
        )
    except FieldError:
        pass
