"""formats.static_topics: the mapping of a static topic, as Apache 5.5.0 writes it."""

import pytest

from broker_store.errors import FormatError
from broker_store.formats import config_json
from broker_store.formats.config_json import DataVersion
from broker_store.formats.static_topics import (
    MappingInfo,
    MappingItem,
    TopicMapping,
    read_answer,
    read_file,
    read_table,
)

# config/topicQueueMapping.json of broker c, Apache's 5.5.0, whose only queue has moved on to b
OF_APACHE = """{
	"dataVersion":{
		"counter":2,
		"stateVersion":0,
		"timestamp":1796070889422
	},
	"topicQueueMappingInfoMap":{
		"T":{
			"bname":"c",
			"currIdMap":{},
			"dirty":false,
			"epoch":1796070889364,
			"hostedQueues":{
				0:[
					{
						"bname":"c",
						"endOffset":-1,
						"gen":1,
						"logicOffset":10000,
						"queueId":0,
						"startOffset":0,
						"timeOfEnd":-1,
						"timeOfStart":-1
					},
					{
						"bname":"b",
						"endOffset":-1,
						"gen":2,
						"logicOffset":-1,
						"queueId":3,
						"startOffset":0,
						"timeOfEnd":-1,
						"timeOfStart":-1
					}
				]
			},
			"scope":"__global__",
			"topic":"T",
			"totalQueues":1
		}
	}
}"""


def row(*items):
    return tuple(MappingItem(gen, gen, "a", offset) for gen, offset in enumerate(items))


def test_the_file_of_apaches_broker_is_read_and_written_with_the_same_bytes():
    table, version = read_file(OF_APACHE)
    [mapping] = table.values()
    assert mapping.rows == {0: (MappingItem(1, 0, "c", 10_000), MappingItem(2, 3, "b", -1))}
    assert (mapping.topic, mapping.total_queues, mapping.broker, mapping.leads) == ("T", 1, "c", {})
    entries = [("T", mapping.to_json())]
    written = config_json.write_table({"dataVersion": version.to_json()}, "topicQueueMappingInfoMap", entries)
    assert written.decode() == OF_APACHE


def test_the_answer_to_21_has_the_same_mappings():
    text = OF_APACHE.replace("topicQueueMappingInfoMap", "topicQueueMappingDetailMap")
    answer = text.replace("dataVersion", "mappingDataVersion")
    assert read_answer(answer) == read_file(OF_APACHE)
    assert read_answer('{"topicConfigTable":{}}') == ({}, DataVersion())


def test_a_broker_leads_the_queues_whose_last_item_it_has():
    rows = {4: row(0), 7: (MappingItem(0, 0, "a", 0), MappingItem(1, 9, "b", 10_000))}
    mapping = TopicMapping("T", 8, "a", 1, rows)
    assert mapping.leads == {4: 0}
    info = mapping.info()
    assert info.to_json()["currIdMap"] == {4: 0}
    assert MappingInfo.from_json(info.to_json() | {"currIdMap": {"4": 0}}) == info


def test_offsets_of_an_item():
    item = MappingItem(1, 0, "a", 10_000, start_offset=5)
    assert [item.logical(physical) for physical in (0, 5, 7)] == [10_000, 10_000, 10_002]
    assert [item.physical(logical) for logical in (9_999, 10_000, 10_002)] == [4, 5, 7]
    ended = item._replace(end_offset=6)
    assert [ended.logical_within(physical) for physical in (0, 6, 9)] == [10_000, 10_001, 10_001]
    assert item.logical_within(9) == 10_004
    assert MappingItem(1, 0, "a", -1).logical_within(9) == -1


def item(**changed):
    return {"bname": "a", "gen": 0, "queueId": 0, "logicOffset": 0} | changed


@pytest.mark.parametrize(
    ("items", "what"),
    [
        ([item(logicOffset=-1), item(gen=1, logicOffset=5)], "queue 3, item 0: only the last item"),
        ([item(), item(gen=0, logicOffset=5)], "queue 3, item 1: gen must be more than 0"),
        ([item(logicOffset=5), item(gen=1, logicOffset=5)], "logicOffset must be more than 5"),
        ([item(endOffset=9), item(gen=1, logicOffset=9)], "logicOffset must be more than 9"),
        ([item(startOffset=3, endOffset=2)], "endOffset must not be less than startOffset 3"),
        ([item(queueId=-1)], "queue 3, item 0: queueId must be an integer from 0 on"),
        ([item(logicOffset=-2)], "logicOffset must be an integer from -1 on"),
        ([item(logicOffset=1 << 62)], "logicOffset must be an integer"),
        ([item(gen=True)], "gen must be an integer"),
        ([item(bname="")], "bname must be a text"),
        ([5], "queue 3, item 0 must be an object"),
        (5, "queue 3 needs an array of items"),
    ],
)
def test_a_wrong_row_is_named(items, what):
    value = {"topic": "T", "bname": "a", "totalQueues": 4, "epoch": 1, "hostedQueues": {"3": items}}
    with pytest.raises(FormatError, match=what):
        TopicMapping.from_json(value)


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"topic": None}, "topic must be a text"),
        ({"totalQueues": -1}, "totalQueues must be an integer"),
        ({"epoch": "1"}, "epoch must be an integer"),
        ({"scope": 5}, "scope must be a text"),
        ({"hostedQueues": {"x": []}}, "hostedQueues has a key that is no integer"),
        ({"hostedQueues": [1]}, "hostedQueues must be an object"),
        ({"currIdMap": {"0": "1"}}, "currIdMap has queue 0"),
    ],
)
def test_a_wrong_mapping_is_named(changed, what):
    value = {"topic": "T", "bname": "a", "totalQueues": 4, "epoch": 1} | changed
    with pytest.raises(FormatError, match=what):
        TopicMapping.from_json(value)


def test_a_table_is_keyed_by_topic():
    value = {"topic": "T", "bname": "a", "totalQueues": 4, "epoch": 1}
    assert read_table({"T": value})["T"].total_queues == 4
    with pytest.raises(FormatError, match="the mapping under 'X' is of topic 'T'"):
        read_table({"X": value})
    with pytest.raises(FormatError, match="must be an object"):
        read_table({"T": 5})
