"""The unmodified Go v2 client against a running broker."""

from tests.interop import clients
from tests.interop.lines import acknowledged, assert_dense, names, place
from tests.interop.positions import committed

MESSAGES = 10_000


def test_ten_thousand_messages_reach_two_consumers_of_one_group(go, broker):
    *topics, group = names(go, "orders", "payments", "events", "readers")
    address = f"127.0.0.1:{broker.broker_port}"
    # A consumer asks for a new topic's route only each 30 s
    go.admin(*(f"create_topic\t{topic}\t{address}" for topic in topics))
    consumers = [go.start("consume", group=group, topics=",".join(topics)) for _ in range(2)]
    try:
        for consumer in consumers:
            consumer.until_ready()
        sent = acknowledged(go.run("send", topics=",".join(topics), n=MESSAGES, threads=8))
        assert len(sent) == MESSAGES
        assert_dense(sent)
        wanted = {line["key"] for line in sent}
        clients.until_together(consumers, lambda lines: wanted <= {line.get("key") for line in lines}, 120)
        received = [line for consumer in consumers for line in consumer.finish(60) if "topic" in line]
    finally:
        for consumer in consumers:
            consumer.kill()
    by_place = {place(line): line for line in sent}
    assert {line["key"] for line in received} == wanted
    for line in received:
        original = by_place[place(line)]
        assert (line["key"], line["tag"], line["offset_id"]) == (
            original["key"],
            original["tag"],
            original["offset_id"],
        )
        assert line["body"].startswith(f"r-{line['number']}-") and len(line["body"]) == 100


def test_batches_oneway_and_asynchronous_messages_arrive(go):
    topic, group = names(go, "mixed", "mixed-readers")
    sent = acknowledged(go.run("send", topics=topic, n=64, mode="batch", per=32, run="b"))
    acknowledged(go.run("send", topics=topic, n=64, mode="async", run="a"))
    go.run("send", topics=topic, n=64, mode="oneway", run="o")
    received = go.run("consume", group=group, topics=topic, n=192, timeout=60_000)
    assert {line["key"] for line in received} == {f"{run}key{i}" for run in "bao" for i in range(64)}
    assert {place(line): line["key"] for line in sent}.items() <= {
        place(line): line["key"] for line in received
    }.items()


def test_a_consumer_gets_only_the_tags_it_asked_for(go):
    topic, group = names(go, "tagged", "tag-readers")
    sent = acknowledged(go.run("send", topics=topic, n=100))
    wanted = {line["key"] for line in sent if line["tag"] in ("TagB", "TagD")}
    received = go.run(
        "consume", group=group, topics=topic, tags="TagB || TagD", n=len(wanted), timeout=60_000
    )
    assert {line["key"] for line in received} == wanted


def test_a_consumer_gets_only_what_its_expression_passes(go):
    topic, group = names(go, "filtered", "sql-readers")
    sent = acknowledged(go.run("send", topics=topic, n=100))
    wanted = {line["key"] for line in sent if line["tag"] in ("TagB", "TagD")}
    expression = "TAGS IN ('TagB', 'TagD') AND KEYS IS NOT NULL"
    consumer = go.start("consume", group=group, topics=topic, sql=expression, timeout=60_000)
    try:
        consumer.until(lambda lines: wanted <= {line.get("key") for line in lines}, 60)
        received = [line for line in consumer.finish() if "topic" in line]
    finally:
        consumer.kill()
    assert {line["key"] for line in received} == wanted


def test_an_orderly_consumer_sees_each_queue_in_order(go):
    topic, group = names(go, "ordered", "order-readers")
    sent = acknowledged(go.run("send", topics=topic, n=200, mode="ordered"))
    received = go.run("consume", group=group, topics=topic, orderly="true", n=200, timeout=90_000)
    assert {place(line) for line in received} == {place(line) for line in sent}
    for queue in {line["queue"] for line in received}:
        offsets = [line["offset"] for line in received if line["queue"] == queue]
        assert offsets == sorted(offsets)


def test_each_broadcasting_consumer_gets_everything(go, broker, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # where the client keeps a broadcasting group's offsets
    topic, group = names(go, "broadcast", "broadcast-readers")
    go.admin(f"create_topic\t{topic}\t127.0.0.1:{broker.broker_port}")
    consumers = [
        go.start("consume", group=group, topics=topic, model="broadcasting", instance=f"b{i}")
        for i in range(2)
    ]
    try:
        for consumer in consumers:
            consumer.until_ready()
        wanted = {line["key"] for line in acknowledged(go.run("send", topics=topic, n=50))}
        for consumer in consumers:
            consumer.until(lambda lines: wanted <= {line.get("key") for line in lines}, 60)
            consumer.finish(60)
    finally:
        for consumer in consumers:
            consumer.kill()


def test_a_failed_message_comes_back(go, broker):
    topic, group = names(go, "retried", "retry-readers")
    acknowledged(go.run("send", topics=topic, n=20))
    go.admin(f"create_topic\t%RETRY%{group}\t127.0.0.1:{broker.broker_port}")
    consumer = go.start("consume", group=group, topics=topic, fail_every=10, level=1)
    try:
        lines = consumer.until(lambda lines: len([line for line in lines if line.get("reconsume")]) >= 2, 90)
        consumer.finish(60)
    finally:
        consumer.kill()
    assert {line["key"] for line in lines if line.get("reconsume")} == {
        line["key"] for line in lines if line.get("failed")
    }


def test_the_pull_consumer_reads_and_commits(go, broker):
    topic, group = names(go, "polled", "pollers")
    go.admin(f"create_topic\t{topic}\t127.0.0.1:{broker.broker_port}")
    acknowledged(go.run("send", topics=topic, n=100))
    first = go.run("poll", topic=topic, group=group, n=100)
    assert len({line["key"] for line in first}) == 100
    # The client does not wait for the answer to a commit, so those of its last batch may be lost with it.
    done = sum(at for at, _ in committed(broker, group, topic).values())
    assert 0 < done <= 100
    acknowledged(go.run("send", topics=topic, n=10, run="b"))
    again = [line["key"] for line in go.run("poll", topic=topic, group=group, n=10, only="b")]
    assert sorted(key for key in again if key.startswith("b")) == [f"bkey{number}" for number in range(10)]
    assert len(again) == 110 - done, "the second goes on where the first committed"


def test_its_admin_client_creates_lists_and_deletes_a_topic(go, broker):
    (topic,) = names(go, "administered")
    address = f"127.0.0.1:{broker.broker_port}"
    created, topics, groups, deleted, after = go.admin(
        f"create_topic\t{topic}\t{address}",
        "topics",
        f"groups\t{address}",
        f"delete_topic\t{topic}\t{address}",
        "topics",
    )
    assert not [answer for answer in (created, topics, groups, deleted, after) if "error" in answer]
    assert topic in topics["rows"] and topic not in after["rows"]
