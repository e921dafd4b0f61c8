"""broker.flow: how long requests may wait, and the record of refusals."""

from broker_store.broker.flow import Refusals, WaitLimits
from broker_store.config.broker import BrokerSettings
from broker_store.protocol.codes import RequestCode as R


def test_each_kind_of_request_has_apaches_limit():
    limits = WaitLimits(BrokerSettings())
    found = {code: limits.limit_ms(int(code)) for code in R}
    assert [
        found[code]
        for code in (R.SEND_MESSAGE, R.SEND_MESSAGE_V2, R.SEND_BATCH_MESSAGE, R.CONSUMER_SEND_MSG_BACK)
    ] == [200] * 4
    assert [
        found[code] for code in (R.PULL_MESSAGE, R.LITE_PULL_MESSAGE, R.HEART_BEAT, R.END_TRANSACTION)
    ] == [5000, 5000, 31_000, 3000]
    assert found[R.UPDATE_AND_CREATE_TOPIC] == found[R.GET_BROKER_CONFIG] == limits.limit_ms(12_345) == 5000
    assert found[R.QUERY_MESSAGE] is found[R.UPDATE_CONSUMER_OFFSET] is found[R.SEND_REPLY_MESSAGE_V2] is None


def test_limits_are_settings_and_can_be_turned_off():
    settings = BrokerSettings(
        wait_time_mills_in_send_queue=1,
        wait_time_mills_in_pull_queue=2,
        wait_time_mills_in_lite_pull_queue=3,
        wait_time_mills_in_heartbeat_queue=4,
        wait_time_mills_in_transaction_queue=5,
        wait_time_mills_in_admin_broker_queue=6,
    )
    codes = (
        R.SEND_MESSAGE,
        R.PULL_MESSAGE,
        R.LITE_PULL_MESSAGE,
        R.HEART_BEAT,
        R.END_TRANSACTION,
        R.GET_BROKER_CONFIG,
    )
    limits = WaitLimits(settings)
    assert [limits.limit_ms(int(code)) for code in codes] == [1, 2, 3, 4, 5, 6]
    off = WaitLimits(BrokerSettings(broker_fast_failure_enable=False))
    assert {off.limit_ms(int(code)) for code in R} == {None}


def test_a_refusal_is_counted_by_cause_and_its_last_case_is_kept():
    now_ms = [1_000]
    refusals = Refusals(lambda: now_ms[0])
    refusals.add("first", value=7, limit=5, who="10.0.0.1:1", said="too much")
    refusals.add("second", 3)
    now_ms[0] = 2_000
    refusals.add("first", 2, value=9, limit=5, who="x" * 1_000, said="y" * 1_000)
    assert refusals.counts() == {"first": 3, "second": 3}
    first, second = refusals.facts()
    assert first == {
        "cause": "first",
        "count": 3,
        "at_ms": 2_000,
        "value": 9,
        "limit": 5,
        "who": "x" * 120,
        "said": "y" * 200,
    }
    assert second == {
        "cause": "second",
        "count": 3,
        "at_ms": 1_000,
        "value": None,
        "limit": None,
        "who": "",
        "said": "",
    }
