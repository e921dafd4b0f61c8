"""kill -9 at random moments under load: nothing acknowledged is missing, offsets are dense, none is used
twice.

Files are so small that log, queue and index roll between any two kills. The producer is Apache's and lives
through all of it, as a real one would.
"""

import os
import random
import threading

import pytest

from tests.interop import clients
from tests.interop.brokers import IS_APACHE, Broker
from tests.interop.lines import place
from tests.support import prepared

TOPICS = ["kill-a", "kill-b", "kill-c"]
# Log files of 256 KiB hold some 500 messages, queue files 500 units, index files 2,000 entries (two a
# message).
SMALL_FILES = {
    "mappedFileSizeCommitLog": 256 * 1024,
    "mappedFileSizeConsumeQueue": 500 * 20,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2000,
}


@pytest.mark.takes(30)
@pytest.mark.parametrize("kills", [8, pytest.param(20, marks=pytest.mark.proof)])
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_nothing_acknowledged_is_lost_over_many_kills(flush, kills, tmp_path):
    if reason := clients.java_missing(clients.JAVA_5):
        pytest.skip(reason)
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")  # shown by pytest when the test fails
    moments = random.Random(seed)
    broker = Broker(tmp_path / "data", {"flushDiskType": flush, **SMALL_FILES})
    java = clients.JavaProgram(clients.JAVA_5, broker.nameserver, tmp_path)
    broker.start()
    producer = java.start(
        "send", topics=",".join(TOPICS), until="eof", threads=4, size=300, send_timeout=3000
    )
    try:
        for _ in range(kills):
            seen = len(producer.lines)
            producer.until(lambda lines, seen=seen: any("offset" in line for line in lines[seen:]), 60)
            threading.Event().wait(moments.uniform(0.05, 1.0))  # the random moment; not a wait for anything
            broker.kill9()
            broker.start()
        sent = [line for line in producer.finish(60) if "offset" in line]
        stored = [line for line in java.run("pull", topics=",".join(TOPICS))]
        assert broker.stop() == 0
    finally:
        producer.kill()
        broker.kill9()

    assert not [line for line in stored if "error" in line]
    queues = {(line["topic"], line["queue"]): line for line in stored if "max" in line}
    messages = {place(line): line for line in stored if "key" in line}
    assert len(messages) == len([line for line in stored if "key" in line])
    assert len({place(line) for line in sent}) == len(sent), "an offset was acknowledged twice"
    for (topic, queue), ends in queues.items():
        assert ends["min"] == 0
        offsets = sorted(offset for t, q, offset in messages if (t, q) == (topic, queue))
        assert offsets == list(range(ends["max"])), (topic, queue)
    # A message that is acknowledged with a status other than SEND_OK (flush timeout) is stored too, but
    # nothing was promised.
    promised = [line for line in sent if line["status"] == "SEND_OK"]
    assert len(promised) > kills * 10
    for line in promised:
        assert place(line) in messages, line
        assert messages[place(line)]["key"] == line["key"]
    if not IS_APACHE:
        assert len(list((broker.store / "commitlog").iterdir())) > 3
        assert len(list((broker.store / "index").iterdir())) > 1
        assert_store_is_whole(broker)


def assert_store_is_whole(broker) -> None:
    """check_store finds nothing: every length, CRC, physical offset, queue and index entry against the
    log."""
    environment = dict(os.environ, BROKER_DATA_DIR=str(broker.data))
    code, said = prepared.run(["check_store", str(broker.store)], environment, 120)
    assert code == 0, said[-4000:]
