"""The unmodified Java client, 5.x and 4.9.x, against a running broker."""

import re
import shutil
import subprocess
import time
from collections import Counter

import pytest

from broker_store.protocol.codes import RequestCode, ResponseCode
from tests.interop import clients
from tests.interop.brokers import IS_APACHE
from tests.interop.lines import acknowledged, assert_dense, names, place

MESSAGES = 10_000


def test_ten_thousand_messages_reach_two_consumers_of_one_group_once(java):
    *topics, group = names(java, "orders", "payments", "events", "readers")
    # A consumer asks for a new topic's route only each 30 s
    java.admin(*(f"create_topic\t{topic}\t8\t8\t6" for topic in topics))
    consumers = [java.start("consume", group=group, topics=",".join(topics)) for _ in range(2)]
    try:
        for consumer in consumers:
            consumer.until_ready()
        sent = acknowledged(java.run("send", topics=",".join(topics), n=MESSAGES, threads=8, mode="async"))
        assert len(sent) == MESSAGES
        assert_dense(sent)

        wanted = {line["key"] for line in sent}
        clients.until_together(consumers, lambda lines: wanted <= {line.get("key") for line in lines}, 90)
        received = [line for consumer in consumers for line in consumer.finish() if "topic" in line]
    finally:
        for consumer in consumers:
            consumer.kill()

    by_place = {place(line): line for line in sent}
    assert {line["key"] for line in received} == wanted
    for line in received:
        original = by_place[place(line)]
        assert (line["key"], line["tag"], line["id"], line["offset_id"]) == (
            original["key"],
            original["tag"],
            original["id"],
            original["offset_id"],
        )
        assert line["body"].startswith(f"r-{line['number']}-") and len(line["body"]) == 100
    # At least once: a rebalance may hand a few messages to both.
    assert len(received) - len(set(map(place, received))) <= MESSAGES // 10


def test_a_message_is_found_by_key_by_unique_id_and_by_offset_id(java):
    (topic,) = names(java, "lookup")
    sent = acknowledged(java.run("send", topics=topic, n=50, run=topic))
    one = sent[17]
    found = java.run("bykey", topic=topic, key=one["key"])
    assert [place(line) for line in found] == [place(one)]
    assert [place(line) for line in java.run("byid", topic=topic, id=f"{one['offset_id']},{one['id']}")] == [
        place(one)
    ] * 2
    assert "error" in java.run("bykey", topic=topic, key="nobody")[0]


def test_a_consumer_gets_only_the_tags_it_asked_for(java):
    topic, group = names(java, "tagged", "tag-readers")
    sent = acknowledged(java.run("send", topics=topic, n=200))
    wanted = {line["key"] for line in sent if line["tag"] in ("TagA", "TagC")}
    received = java.run(
        "consume", group=group, topics=topic, tags="TagA || TagC", n=len(wanted), timeout=60_000
    )
    assert {line["key"] for line in received} == wanted


SQL = "number BETWEEN 40 AND 150 AND TAGS IN ('TagA', 'TagC') AND (number <> 45 OR missing IS NOT NULL)"


def _passes(line) -> bool:
    number = int(line["key"].partition("key")[2])
    return 40 <= number <= 150 and line["tag"] in ("TagA", "TagC") and number != 45


def test_a_consumer_gets_only_what_its_expression_passes(java):
    topic, group = names(java, "filtered", "sql-readers")
    # Creates the topic: a consumer asks for the route of a missing one each 30 s.
    acknowledged(java.run("send", topics=topic, n=1))
    consumer = java.start("consume", group=group, topics=topic, sql=SQL)
    try:
        consumer.until_ready()
        sent = acknowledged(java.run("send", topics=topic, n=200))
        wanted = {line["key"] for line in sent if _passes(line)}
        consumer.until(lambda lines: wanted <= {line.get("key") for line in lines}, 60)
        received = [line for line in consumer.finish() if "topic" in line]
    finally:
        consumer.kill()
    assert {line["key"] for line in received} == wanted and len(wanted) > 30
    # From the beginning: a lite pull consumer, and one that sends the expression with each pull.
    polled = java.run("poll", group=f"{group}-lite", topics=topic, n=len(wanted), sql=SQL, timeout=60_000)
    assert {line["key"] for line in polled} == wanted
    pulled = java.run("pull", group=f"{group}-pull", topics=topic, sql=SQL)
    assert {line["key"] for line in pulled if "key" in line} == wanted


def test_a_bad_expression_stops_a_consumer_at_its_start(java):
    topic, group = names(java, "filtered-badly", "sql-beginners")
    acknowledged(java.run("send", topics=topic, n=1))
    with pytest.raises(AssertionError, match="CODE: 23  DESC: .*cannot be compared"):
        java.run("consume", group=group, topics=topic, sql="number > 'x'", timeout=5_000)


def test_a_batch_is_stored_as_its_messages(java):
    topic, group = names(java, "batched", "batch-readers")
    sent = acknowledged(java.run("send", topics=topic, n=320, mode="batch", per=32))
    assert len(sent) == 320
    assert_dense(sent)
    received = java.run("consume", group=group, topics=topic, n=320, timeout=60_000)
    assert {place(line): (line["key"], line["id"], line["offset_id"]) for line in received} == {
        place(line): (line["key"], line["id"], line["offset_id"]) for line in sent
    }


def test_oneway_messages_arrive(java):
    (topic,) = names(java, "oneway")
    acknowledged(java.run("send", topics=topic, n=1))  # creates the topic: a oneway send gets no answer
    java.run("send", topics=topic, n=100, mode="oneway", run="o")
    pulled = [line for line in java.run("pull", topics=topic) if "key" in line]
    assert {line["key"] for line in pulled} == {f"okey{i}" for i in range(100)} | {"rkey0"}


def test_a_body_that_the_client_compressed_comes_back_whole(java):
    (topic,) = names(java, "compressed")
    acknowledged(java.run("send", topics=topic, n=3, size=20_000))
    pulled = [line for line in java.run("pull", topics=topic) if "key" in line]
    assert sorted(len(line["body"]) for line in pulled) == [20_000] * 3


def test_an_orderly_consumer_sees_each_queue_in_order_even_when_it_asks_for_a_moment(java):
    topic, group = names(java, "ordered", "order-readers")
    sent = acknowledged(java.run("send", topics=topic, n=400, mode="ordered"))
    received = [
        line
        for line in java.run(
            "consume", group=group, topics=topic, orderly="true", n=400, timeout=90_000, fail_every=150
        )
        if not line.get("failed")
    ]
    assert {place(line) for line in received} == {place(line) for line in sent}
    for queue in {line["queue"] for line in received}:
        offsets = [line["offset"] for line in received if line["queue"] == queue]
        assert offsets == sorted(offsets)


def test_each_broadcasting_consumer_gets_everything(java):
    topic, group = names(java, "broadcast", "broadcast-readers")
    acknowledged(java.run("send", topics=topic, n=1, run="first"))
    consumers = [
        java.start("consume", group=group, topics=topic, model="broadcasting", instance=f"b{i}")
        for i in range(2)
    ]
    try:
        for consumer in consumers:
            consumer.until(lambda lines: any(line.get("key") == "firstkey0" for line in lines), 60)
        wanted = {line["key"] for line in acknowledged(java.run("send", topics=topic, n=100))}
        for consumer in consumers:
            consumer.until(lambda lines: wanted <= {line.get("key") for line in lines}, 60)
            consumer.finish()
    finally:
        for consumer in consumers:
            consumer.kill()


def test_a_failed_message_comes_back_through_the_retry_topic(java):
    topic, group = names(java, "retried", "retry-readers")
    acknowledged(java.run("send", topics=topic, n=30))
    # There before the consumer, which asks for new routes only each 30 s
    java.admin(f"create_topic\t%RETRY%{group}\t1\t1\t6")
    consumer = java.start("consume", group=group, topics=topic, fail_every=10, level=1)
    try:
        lines = consumer.until(lambda lines: len([line for line in lines if line.get("reconsume")]) >= 3, 60)
        consumer.finish()
    finally:
        consumer.kill()
    failed = {line["key"] for line in lines if line.get("failed")}
    again = [line for line in lines if line.get("reconsume")]
    assert {line["key"] for line in again} == failed
    # The client gives retried messages their own topic back
    assert all(line["topic"] == topic and line["reconsume"] == 1 for line in again)


def test_a_message_that_failed_for_good_lies_in_the_dead_letter_topic(java):
    topic, group = names(java, "doomed", "doomed-readers")
    sent = acknowledged(java.run("send", topics=topic, n=1))
    # Apache makes it write-only; reading it is an admin's decision
    java.admin(f"create_topic\t%DLQ%{group}\t1\t1\t6")
    consumer = java.start("consume", group=group, topics=topic, fail_every=1, fail_times=100, level=-1)
    reader = java.start("consume", group=f"{group}-dead", topics=f"%DLQ%{group}")
    try:
        lines = reader.until(lambda lines: any("key" in line for line in lines), 60)
        reader.finish()
        consumer.finish()
    finally:
        reader.kill()
        consumer.kill()
    dead = [line for line in lines if "key" in line]
    assert [line["key"] for line in dead] == [sent[0]["key"]]


def test_a_group_continues_where_it_stopped(java):
    topic, group = names(java, "resumed", "resumers")
    acknowledged(java.run("send", topics=topic, n=100, run="a"))
    first = java.run("consume", group=group, topics=topic, n=100, timeout=60_000)
    acknowledged(java.run("send", topics=topic, n=50, run="b"))
    consumer = java.start("consume", group=group, topics=topic)
    try:
        second = consumer.until(
            lambda lines: {f"bkey{i}" for i in range(50)} <= {line.get("key") for line in lines}, 60
        )
        consumer.finish()
    finally:
        consumer.kill()
    assert len(first) == 100
    # At least once: what 20 threads of the first consumer had in hand when it stopped may come again, and in
    # each queue what comes after the oldest of these, since one offset is committed. The rest does not.
    assert len([line for line in second if line.get("key", "").startswith("akey")]) < 50


def test_the_lite_pull_consumer_reads_and_commits(java):
    topic, group = names(java, "polled", "pollers")
    acknowledged(java.run("send", topics=topic, n=100))
    assert len({line["key"] for line in java.run("poll", group=group, topics=topic, n=100)}) == 100
    (stats,) = java.admin(f"consume_stats\t{group}\t{topic}")
    assert sum(row["consumer_offset"] for row in stats["rows"]) == 100


def test_offsets_by_time_lie_between_lowest_and_highest(java):
    (topic,) = names(java, "timed")
    acknowledged(java.run("send", topics=topic, n=80))
    pulled = [line for line in java.run("pull", topics=topic) if "key" in line]
    middle = sorted(line["store_time"] for line in pulled)[40]
    for row in java.run("offsets", topic=topic, time=middle):
        stored = [line["store_time"] for line in pulled if line["queue"] == row["queue"]]
        assert (row["min"], row["max"]) == (0, len(stored))
        assert stored[row["at_time"]] >= middle if row["at_time"] < len(stored) else max(stored) < middle
        assert row["earliest_ms"] == min(stored)


def test_apaches_admin_client_creates_changes_shows_and_deletes_a_topic(java):
    (topic,) = names(java, "administered")
    answers = java.admin(
        f"create_topic\t{topic}\t3\t2\t6",
        f"topic_config\t{topic}",
        f"create_topic\t{topic}\t4\t4\t4",
        f"topic_config\t{topic}",
        "topics",
        "topic_configs",
    )
    assert answers[1]["rows"] == [
        {"topic": topic, "read_queues": 3, "write_queues": 2, "perm": 6, "order": False}
    ]
    assert answers[3]["rows"] == [
        {"topic": topic, "read_queues": 4, "write_queues": 4, "perm": 4, "order": False}
    ]
    assert topic in answers[4]["rows"]
    assert topic in [row["topic"] for row in answers[5]["rows"]]
    (route,) = java.admin(f"topic_route\t{topic}")
    assert route["rows"] == [
        {"broker": route["rows"][0]["broker"], "read_queues": 4, "write_queues": 4, "perm": 4}
    ]
    _, configs, route = java.admin(f"delete_topic\t{topic}", "topic_configs", f"topic_route\t{topic}")
    assert topic not in [row["topic"] for row in configs["rows"]]
    assert "error" in route


def test_apaches_admin_client_creates_changes_shows_and_deletes_a_group(java):
    (group,) = names(java, "administered-group")
    answers = java.admin(
        f"create_group\t{group}\t3",
        f"group_config\t{group}",
        f"create_group\t{group}\t7",
        f"group_config\t{group}",
        "groups",
        f"delete_group\t{group}",
        "groups",
    )
    assert [answers[i]["rows"] for i in (1, 3)] == [
        [{"group": group, "retry_max_times": times, "consume_enable": True}] for times in (3, 7)
    ]
    assert group in answers[4]["rows"]
    # Apache 5.5.0 itself makes the group again when the offsets are to stay, which is all that the 4.9 client
    # can say.
    assert group not in answers[6]["rows"] or (IS_APACHE and java.version == clients.JAVA_4)


def test_a_retry_policy_is_told_as_apaches_admin_client_set_it(java_5):
    (group,) = names(java_5, "patient-group")
    default, *_, set_to = java_5.admin(
        f"create_group\t{group}\t3",
        f"retry_policy\t{group}",
        f"create_group\t{group}\t3\tEXPONENTIAL",
        f"retry_policy\t{group}",
    )[1:]
    assert "type=CUSTOMIZED" in default["rows"][0] and "exponentialRetryPolicy=null" in default["rows"][0]
    (told,) = set_to["rows"]
    assert (
        "type=EXPONENTIAL" in told
        and "initial=3000, max=60000, multiplier=3" in told
        and told.count("CustomizedRetryPolicy{next=") == 1
    )


def test_apaches_admin_client_shows_statistics_connections_and_the_cluster(java, broker):
    topic, group = names(java, "shown", "shown-readers")
    began_ms = int(time.time() * 1000)
    sent = acknowledged(java.run("send", topics=topic, n=60))
    consumer = java.start("consume", group=group, topics=topic)
    try:
        consumer.until(lambda lines: len({line.get("key") for line in lines} - {None}) == 60, 60)
        (connected,) = java.admin(f"consumers\t{group}")
        consumer.finish()
    finally:
        consumer.kill()
    assert [row["language"] for row in connected["rows"]] == ["JAVA"]

    stats, consumed, who, cluster, runtime, config = java.admin(
        f"topic_stats\t{topic}",
        f"consume_stats\t{group}",
        f"groups_of_topic\t{topic}",
        "cluster",
        "runtime",
        "broker_config",
    )
    assert {row["queue"]: row["max"] for row in stats["rows"] if row["max"]} == Counter(
        line["queue"] for line in sent
    )
    assert all(row["updated_ms"] >= began_ms for row in stats["rows"] if row["max"])
    assert all(
        row["broker_offset"] == row["consumer_offset"] for row in consumed["rows"] if row["topic"] == topic
    )
    assert sum(row["consumer_offset"] for row in consumed["rows"] if row["topic"] == topic) == 60
    assert group in who["rows"]
    assert [row["addresses"] for row in cluster["rows"]] == [{"0": f"127.0.0.1:{broker.broker_port}"}]
    facts = runtime["rows"][0]
    assert (
        int(facts["commitLogMaxOffset"]) > 0
        and float(facts["putTps"].split()[0]) >= 0
        and facts["brokerVersionDesc"].startswith("V")
    )
    assert config["rows"][0]["flushDiskType"] == "ASYNC_FLUSH"


def test_a_group_is_set_back_by_time(java):
    topic, group = names(java, "rewound", "rewinders")
    acknowledged(java.run("send", topics=topic, n=40))
    java.run("consume", group=group, topics=topic, n=40, timeout=60_000)
    reset, stats = java.admin(f"reset_offset\t{group}\t{topic}\t0", f"consume_stats\t{group}\t{topic}")
    assert "error" not in reset or "not online" in reset["error"] or IS_APACHE, reset
    if "error" not in reset:
        assert {row["offset"] for row in reset["rows"]} == {0}
    again = java.run("consume", group=group, topics=topic, n=40, timeout=60_000)
    assert len({line["key"] for line in again}) == 40


def test_name_server_settings_are_kept(java):
    (key,) = names(java, "key")
    _, found = java.admin(f"put_kv\tinterop\t{key}\tvalue of it", f"get_kv\tinterop\t{key}")
    assert found["rows"] == ["value of it"]


@pytest.mark.parametrize(
    ("java_class", "ours"), [("RequestCode", RequestCode), ("ResponseCode", ResponseCode)]
)
def test_every_code_of_apaches_jar_has_its_name_and_number_here(java_class, ours):
    """docs/COMPATIBILITY.md lists all of ours, so it misses none of Apache's."""
    if reason := clients.java_missing(clients.JAVA_5) or (
        None if shutil.which("javap") else "no javap on this machine"
    ):
        pytest.skip(reason)
    classpath = (clients.BUILD / f"cp-{clients.JAVA_5}.txt").read_text()
    told = subprocess.run(
        ["javap", "-constants", "-cp", classpath, f"org.apache.rocketmq.remoting.protocol.{java_class}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    codes = {name: int(code) for name, code in re.findall(r"int ([A-Z0-9_]+) = (-?[0-9]+);", told.stdout)}
    assert len(codes) > 50 and codes.items() <= {code.name: int(code) for code in ours}.items()
