"""The filters of groups in a store that goes from one broker to the other."""

import json

from broker_store.broker.filters import parse
from broker_store.broker.property_filters import FILE_NAME, PropertyFilters
from tests.interop import clients
from tests.interop.brokers import ApacheBroker


def test_apaches_broker_keeps_the_filters_of_our_file(tmp_path):
    clients.require(clients.JAVA_5)
    filters = PropertyFilters(clock=lambda: 1_795_365_905_049)
    filters.register("G1", [parse("S1", "a < 2", "SQL92", 102), parse("S2", "b = 'x'", "SQL92", 103)])
    filters.register("группа", [parse("S1", "c IS NOT NULL", "SQL92", 7)])
    broker = ApacheBroker(tmp_path / "data", {"filterDataCleanTimeSpan": str(10**15)})
    path = broker.store / "config" / FILE_NAME
    path.parent.mkdir(parents=True)
    path.write_bytes(filters.picture()())
    broker.start()
    broker.stop()
    # It loads the file as a whole or not at all, and writes what it has at its stop.
    written = path.read_text()
    loaded = PropertyFilters(clock=lambda: 1_795_365_905_049)
    loaded.load(written)
    assert "deadTime" in written and {
        (one.topic, one.group, one.expression, one.version) for one in loaded.all()
    } == {(one.topic, one.group, one.expression, one.version) for one in filters.all()}
    assert all(
        entry["dead"]
        for topic in json.loads(written)["filterDataByTopic"].values()
        for entry in topic["groupFilterData"].values()
    )
