"""broker.statistics: counters and rates."""

from broker_store.broker.statistics import DAY_MS, HOUR_MS, MINUTE_MS, STEP, Statistics
from broker_store.units import fields_of


def test_rates_are_measured_between_ticks():
    now = [0]
    statistics = Statistics(clock=lambda: now[0])
    for second in range(1, 21):
        statistics.stored("t", 100, 1_000)
        statistics.tick(second * 1_000)
    assert (statistics.put.messages, statistics.put.bytes) == (2_000, 20_000)
    assert statistics.put.rates(1_000) == (100, 1_000) and statistics.put.rates(10_000)[0] == 100
    assert statistics.put_rate("t") == 100 and statistics.put_rate("unknown") == 0


def test_a_rate_falls_to_zero_when_nothing_comes():
    statistics = Statistics(clock=lambda: 0)
    statistics.stored("t", 100, 1_000)
    for second in range(1, 30):
        statistics.tick(second * 1_000)
    assert statistics.put_rate("t") == 0
    assert statistics.topic("t").rates(60_000)[0] > 0


def test_before_the_first_tick_there_is_no_rate():
    statistics = Statistics(clock=lambda: 0)
    statistics.stored("t", 100, 1_000)
    assert statistics.put_rate("t") == 0


def test_groups_are_counted_by_topic():
    statistics = Statistics(clock=lambda: 0)
    statistics.delivered("g", "t", 3, 30)
    statistics.delivered("g", "u", 4, 40)
    statistics.tick(1_000)
    assert {topic: meter.messages for topic, meter in statistics.group("g").items()} == {"t": 3, "u": 4}
    assert statistics.got_rate("g") == 7 and statistics.got_rate("g", "u") == 4
    statistics.forget_topic("t")
    statistics.forget_group("g")
    assert statistics.group("g") == {}


def test_what_came_cold_is_told_beside_all_that_came():
    statistics = Statistics(clock=lambda: 0)
    for second in range(1, 12):
        statistics.delivered("g", "t", 30, 300)
        statistics.delivered("g", "t", 10, 100, cold=True)
        statistics.delivered("h", "t", 5, 50)
        statistics.tick(second * 1_000)
    found = {read.group: read for read in statistics.reads()}
    expected = {"reads": 22, "messages": 440, "bytes": 4_400, "per_s": 40, "bytes_per_s": 400}
    assert fields_of(found["g"]) == {"group": "g", "topic": "t"} | expected | {
        f"cold_{name}": value // (2 if name == "reads" else 4) for name, value in expected.items()
    }
    assert (found["h"].reads, found["h"].cold_reads, found["h"].cold_per_s) == (11, 0, 0)
    statistics.forget_group("g")
    statistics.delivered("g", "t", 1, 10)
    assert statistics.reads()[-1].cold_messages == 0, "a group of the same name begins anew"


def test_totals_of_the_day_begin_at_midnight():
    now_ms = 1_700_000_000_000
    statistics = Statistics(clock=lambda: now_ms)
    statistics.stored("t", 5, 50)
    statistics.tick(now_ms + 1_000)
    statistics.tick(now_ms + DAY_MS)
    statistics.stored("t", 2, 20)
    days = statistics.days()
    assert (days["msgPutTotalTodayMorning"], days["msgPutTotalTodayNow"]) == (5, 7)
    statistics.tick(now_ms + 2 * DAY_MS)
    assert (
        statistics.days()["msgPutTotalYesterdayMorning"],
        statistics.days()["msgPutTotalTodayMorning"],
    ) == (5, 7)


def test_the_last_minute_hour_and_day_are_summed():
    now = [0]
    statistics = Statistics(clock=lambda: now[0])
    for second in range(1, 7_201):
        statistics.stored("t", 1, 10)
        statistics.tick(second * 1_000)
    meter = statistics.topic("t")
    assert meter.lately(7_200_000, MINUTE_MS) == (60, 600, 60.0)
    assert meter.lately(7_200_000, HOUR_MS) == (3_600, 36_000, 3_600.0)
    assert meter.lately(7_200_000, DAY_MS) == (7_200, 72_000, 7_200.0)
    assert meter.lately(7_200_000 + 2 * DAY_MS, DAY_MS) == (0, 0, 86_400.0)


def test_what_comes_after_a_long_quiet_is_counted_from_its_first_message():
    statistics = Statistics(clock=lambda: 0)
    statistics.stored("t", 5, 50)
    for second in range(1, 1_000):
        statistics.tick(second * 1_000)
    statistics.stored("t", 100, 1_000)
    statistics.tick(90_000_000)
    meter = statistics.topic("t")
    assert meter.rates(1_000) == (100, 1_000)
    for over_ms in (MINUTE_MS, HOUR_MS, DAY_MS):
        assert meter.lately(90_000_000, over_ms)[:2] == (100, 1_000)


def test_a_tick_samples_what_moved_and_nothing_else():
    """100,000 topics with one message each must not cost time in each tick of the next minutes."""
    statistics = Statistics(clock=lambda: 0)
    for number in range(1_000):
        statistics.stored(f"t{number}", 1, 10)
    assert sum(1 for _ in statistics.tick_in_steps(1_000)) == 1_000 // STEP
    statistics.stored("t7", 5, 50)
    steps = [sum(1 for _ in statistics.tick_in_steps(second * 1_000)) for second in range(2, 30)]
    assert [number for number in steps if number] == [999 // STEP], (
        "once, when those of the first tick are no longer active"
    )
    assert len(statistics.topic("t8")._seconds) == 2, (
        "the one it began with, and that of the tick after it moved"
    )


def test_rates_of_what_comes_now_and_then_are_those_of_samples_each_second():
    statistics = Statistics(clock=lambda: 0)
    came = {}
    for second in range(1, 200):
        if second % 7 == 0:
            statistics.stored("t", 70, 700)
            came[second] = 70
        statistics.tick(second * 1_000)
        meter = statistics.topic("t")
        if meter is not None and second > 20:
            assert meter.rates(1_000)[0] == came.get(second, 0)
            assert meter.rates(10_000)[0] == sum(came.get(second - ago, 0) for ago in range(10)) / 10
            assert (
                abs(
                    meter.lately(second * 1_000, MINUTE_MS)[0]
                    - sum(came.get(second - ago, 0) for ago in range(60))
                )
                <= 140
            )


def test_groups_and_topics_are_forgotten_from_both_sides():
    statistics = Statistics(clock=lambda: 0)
    for group in "gh":
        for topic in "tu":
            statistics.delivered(group, topic, 3, 30, cold=True)
            statistics.sent_back(group, topic)
    statistics.tick(1_000)
    assert statistics.out_rate("t") == 6 and set(statistics.active_topics()) == {"t", "u"}
    statistics.forget_topic("t")
    assert statistics.out_rate("t") == 0 and set(statistics.group("g")) == {"u"}
    statistics.forget_group("g")
    assert [read.group for read in statistics.reads()] == ["h"] and statistics.sent_back_of("g", "u") is None
    statistics.forget_group("h")
    assert statistics.active_topics() == [] and statistics._topics_of == statistics._groups_of == {}
