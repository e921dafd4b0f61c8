"""Commands about the settings of consumer groups."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from broker_store.errors import MisuseError
from broker_store.formats.names import DLQ_PREFIX, RETRY_PREFIX
from broker_store.protocol import fastjson
from broker_store.protocol.codes import RequestCode
from broker_store.protocol.route_bodies import MASTER_ID
from broker_store.tools import layout
from broker_store.tools.command import BROKER_OR_CLUSTER, Line, Options, command, needed, option
from broker_store.tools.servers import Servers
from broker_store.tools.topics import attributes_of, delete_everywhere, list_in

GROUP = needed("g", "groupName", "name of the consumer group")
POLICY = {"type": "CUSTOMIZED"}
BOOLEANS = ("true", "false")


def _settings(options: Options) -> dict[str, Any]:
    """Return the settings of a group as Apache's command sends them: what is not given has its default."""
    policy = options.get("groupRetryPolicy")
    try:
        of = json.loads(policy) if policy else POLICY
    except ValueError as error:
        raise MisuseError(f"--groupRetryPolicy {policy:.60}: {error}") from None
    if not isinstance(of, dict):
        raise MisuseError(f"--groupRetryPolicy {policy:.60}: expected an object in JSON")
    return {
        "groupName": options.text("groupName"),
        "consumeEnable": options.yes("consumeEnable", True),
        "consumeFromMinEnable": options.yes("consumeFromMinEnable"),
        "consumeBroadcastEnable": options.yes("consumeBroadcastEnable"),
        "consumeMessageOrderly": options.yes("consumeMessageOrderly"),
        "retryQueueNums": options.number("retryQueueNums", 1),
        "retryMaxTimes": options.number("retryMaxTimes", 16),
        "groupRetryPolicy": of,
        "brokerId": options.number("brokerId", 0),
        "whichBrokerWhenConsumeSlowly": options.number("whichBrokerWhenConsumeSlowly", 1),
        "notifyConsumerIdsChangedEnable": options.yes("notifyConsumerIdsChanged", True),
        "groupSysFlag": 0,
        "consumeTimeoutMinute": 15,
        "attributes": attributes_of(options.get("attributes")),
    }


def _text(name: str, given: object) -> str:
    if name == "groupRetryPolicy" and isinstance(given, Mapping):
        return layout.retry_policy(given)
    if isinstance(given, Mapping):
        return layout.pairs(given)
    return layout.value(given)


@command(
    "updateSubGroup",
    "Update or create subscription group.",
    GROUP,
    option("s", "consumeEnable", "whether the group may consume", *BOOLEANS),
    option("m", "consumeFromMinEnable", "whether a new group begins at the lowest offset", *BOOLEANS),
    option("d", "consumeBroadcastEnable", "whether its clients may broadcast", *BOOLEANS),
    option("o", "consumeMessageOrderly", "whether messages that come again are kept in order", *BOOLEANS),
    option("q", "retryQueueNums", "queues of its retry topic (default: 1)"),
    option("r", "retryMaxTimes", "retries before a message is a dead letter (default: 16)"),
    option("p", "groupRetryPolicy", 'the retry policy in JSON: {"type":"EXPONENTIAL", ..}'),
    option("i", "brokerId", "id of the broker of which it consumes (default: 0)"),
    option("w", "whichBrokerWhenConsumeSlowly", "id of the broker when it is slow (default: 1)"),
    option("a", "notifyConsumerIdsChanged", "whether clients are notified when others join", *BOOLEANS),
    option("attributes", "attributes", "attributes: +a=b,+c=d,-e"),
    one_of=(BROKER_OR_CLUSTER,),
)
async def update_group(servers: Servers, options: Options) -> AsyncIterator[Line]:
    settings = _settings(options)
    for address in await servers.chosen(options):
        await servers.ask(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, fastjson.dumps(settings))
        yield Line(f"create subscription group to {address} success.", {"broker": address} | settings)
    shown = ", ".join(
        f"{name}={_text(name, each)}"
        for name, each in (
            settings | {"subscriptionDataSet": None, "attributes": settings["attributes"]}
        ).items()
        if name != "attributes"
    )
    yield Line(f"SubscriptionGroupConfig{{{shown}, attributes={layout.pairs(settings['attributes'])}}}")


@command(
    "updateSubGroupList",
    "Update or create subscription group in batch",
    needed("f", "filename", "a file with a list of SubscriptionGroupConfig in JSON"),
    one_of=(BROKER_OR_CLUSTER,),
)
async def update_group_list(servers: Servers, options: Options) -> AsyncIterator[Line]:
    body = fastjson.dumps({"groupConfigList": list_in(options.text("filename"))})
    what = "group config" if "brokerAddr" in options else "subscription group config"
    for address in await servers.chosen(options):
        await servers.ask(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body)
        yield Line(
            f"submit batch of {what} to {address} success, please check the result later.",
            {"broker": address},
        )


@command(
    "deleteSubGroup",
    "Delete subscription group from broker.",
    GROUP,
    option("r", "removeOffset", "whether its offsets are deleted (default: false)", *BOOLEANS),
    one_of=(BROKER_OR_CLUSTER,),
)
async def delete_group(servers: Servers, options: Options) -> AsyncIterator[Line]:
    group, cluster = options.text("groupName"), options.get("clusterName")
    of_cluster = f" in cluster [{cluster}]" if cluster else ""
    for address in await servers.chosen(options):
        await servers.ask(
            address,
            RequestCode.DELETE_SUBSCRIPTIONGROUP,
            group_name=group,
            clean_offset=options.yes("removeOffset"),
        )
        yield Line(
            f"delete subscription group [{group}] from broker [{address}]{of_cluster} success.",
            {"group": group, "broker": address},
        )
    if cluster is None:
        return
    for topic in (RETRY_PREFIX + group, DLQ_PREFIX + group):
        await delete_everywhere(servers, topic, cluster)


@command("getConsumerConfig", "Get consumer config by subscription group name.", GROUP)
async def consumer_config(servers: Servers, options: Options) -> AsyncIterator[Line]:
    group = options.text("groupName")
    info = await servers.cluster_info()
    for name, broker in sorted(info.brokers.items()):
        address = broker.addresses.get(MASTER_ID)
        if address is None:
            continue
        # Not 352: Apache's broker makes a group that it is asked for.
        found = (await servers.admin.group_configs(address)).get(group)
        if found is None:
            continue
        mark = "=" * 29
        yield Line(f"{mark}{broker.cluster}:{name}{mark}")
        for key in (
            "groupName",
            "consumeEnable",
            "consumeFromMinEnable",
            "consumeBroadcastEnable",
            "consumeMessageOrderly",
            "retryQueueNums",
            "retryMaxTimes",
            "groupRetryPolicy",
            "brokerId",
            "whichBrokerWhenConsumeSlowly",
            "notifyConsumerIdsChangedEnable",
            "groupSysFlag",
            "consumeTimeoutMinute",
        ):
            yield Line(f"{key:<40s}=  {_text(key, found.get(key))}")
        subscriptions = found.get("subscriptionDataSet")
        yield Line(
            f"{'subscriptionDataSet':<40s}=  {'' if subscriptions is None else layout.value(subscriptions)}"
        )
        yield Line(
            f"{'attributes':<40s}=  {layout.pairs(found.get('attributes') or {})}",
            {"broker": name, "cluster": broker.cluster} | found,
        )
        yield Line("")


@command(
    "setConsumeMode",
    "Set consume message mode. pull/pop etc.",
    needed("t", "topicName", "name of the topic"),
    GROUP,
    needed("m", "mode", "how the group consumes", "PULL", "POP"),
    option("q", "popShareQueueNum", "how many other clients pop the queues of each (default: 0)"),
    one_of=(BROKER_OR_CLUSTER,),
)
async def consume_mode(servers: Servers, options: Options) -> AsyncIterator[Line]:
    topic, group, mode = options.text("topicName"), options.text("groupName"), options.text("mode")
    share = options.number("popShareQueueNum", 0)
    body = fastjson.dumps({"topic": topic, "consumerGroup": group, "mode": mode, "popShareQueueNum": share})
    for address in await servers.chosen(options):
        await servers.ask(address, RequestCode.SET_MESSAGE_REQUEST_MODE, body)
        yield Line(
            f"set consume mode to {address} success.",
            {"broker": address, "topic": topic, "group": group, "mode": mode, "popShareQueueNum": share},
        )
    yield Line(f"topic[{topic}] group[{group}] consume mode[{mode}] popShareQueueNum[{share}]")
