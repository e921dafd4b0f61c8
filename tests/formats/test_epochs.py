import pytest

from broker_store.errors import FormatError
from broker_store.formats import broker_identity, epochs
from broker_store.formats.broker_identity import BrokerIdentity
from broker_store.formats.epochs import Epoch


def test_the_file_is_that_of_apaches_broker():
    written = b"1\n1725254278\n1-0\n"  # by a master of 5.5.0
    assert epochs.encode([Epoch(1, 0)]) == written
    assert epochs.decode(written) == (Epoch(1, 0),)


def test_what_is_written_is_read():
    several = (Epoch(1, 0), Epoch(2, 1_000), Epoch(5, 1 << 40))
    assert epochs.decode(epochs.encode(several)) == several
    assert epochs.decode(b"1\n0\n7-7000\n") == (Epoch(7, 7_000),)  # CRC 0 is not checked


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"1\n",
        b"one\n0\n1-0\n",
        b"2\n0\n1-0\n",
        b"1\n1725254279\n1-0\n",
        b"1\n0\n1-0-3\n",
        b"1\n0\n\xff-0\n",
        b"2\n0\n2-0\n1-10\n",
        b"2\n0\n1-10\n2-0\n",
    ],
)
def test_another_file_is_refused(data):
    with pytest.raises(FormatError):
        epochs.decode(data)


def logs(*numbers):
    return [Epoch(number, begin) for number, begin in numbers]


@pytest.mark.parametrize(
    ("own", "own_end", "other", "other_end", "common"),
    [
        # the same epoch: the shorter log
        (logs((1, 0)), 500, logs((1, 0)), 900, 500),
        (logs((1, 0)), 900, logs((1, 0)), 500, 500),
        # the other went on in a new epoch before the end of this log
        (logs((1, 0)), 900, logs((1, 0), (2, 700)), 2_000, 700),
        # this broker was the master of epoch 2, the other of epoch 3, which begins earlier
        (logs((1, 0), (2, 700)), 900, logs((1, 0), (3, 650)), 2_000, 650),
        # the newest of the same number and another begin is passed over
        (logs((1, 0), (2, 700)), 900, logs((1, 0), (2, 600)), 2_000, 600),
        # an epoch was noted before its bytes came
        (logs((1, 0), (2, 700)), 650, logs((1, 0), (2, 700)), 2_000, 650),
        # nothing in common
        (logs((1, 0)), 900, logs((2, 0)), 900, None),
        ([], 900, logs((1, 0)), 900, None),
    ],
)
def test_where_two_logs_part_follows_from_their_epochs(own, own_end, other, other_end, common):
    assert epochs.common_end(own, own_end, other, other_end) == common


def test_the_files_of_an_id_are_those_of_apaches_broker():
    agreed = BrokerIdentity("DefaultCluster", "broker-a", 1)
    assert broker_identity.encode(agreed) == b"DefaultCluster#broker-a#1"
    assert broker_identity.decode(b"DefaultCluster#broker-a#1") == agreed
    asked = agreed._replace(number=2, check_code="127.0.0.1:10911;1795366966763")
    assert broker_identity.decode(broker_identity.encode(asked), is_temporary=True) == asked


@pytest.mark.parametrize("data", [b"", b"a#b", b"a#b#x", b"a##1", b"a#b#1#c", b"a#b#-1"])
def test_no_id_is_read_from_another_file(data):
    with pytest.raises(FormatError):
        broker_identity.decode(data)
