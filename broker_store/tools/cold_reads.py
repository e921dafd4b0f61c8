"""Commands about reads of old messages: their limits for each group, and the read-ahead of the log."""

from __future__ import annotations

from collections.abc import AsyncIterator

from broker_store.errors import MisuseError
from broker_store.protocol.codes import RequestCode
from broker_store.protocol.members import loads_object
from broker_store.tools import layout
from broker_store.tools.brokers import headed, properties_line
from broker_store.tools.command import BROKER_OR_CLUSTER, Line, Options, command, needed
from broker_store.tools.servers import Servers

GROUP = needed("g", "consumerGroup", "name of the consumer group")


@command("getColdDataFlowCtrInfo", "Get cold data flow ctr info.", one_of=(BROKER_OR_CLUSTER,))
async def flow(servers: Servers, options: Options) -> AsyncIterator[Line]:
    for heading, address in await headed(servers, options):
        answer = await servers.ask(address, RequestCode.GET_COLD_DATA_FLOW_CTR_INFO)
        found = loads_object(answer.body) if answer.body else {}
        yield Line(f" {heading}")
        yield Line(layout.pretty(found), {"broker": address} | found)
        yield Line("")


@command(
    "updateColdDataFlowCtrGroupConfig",
    "Add or update cold data flow ctr group config.",
    GROUP,
    needed("v", "threshold", "bytes of old messages that the group may read in a period"),
    one_of=(BROKER_OR_CLUSTER,),
)
async def put(servers: Servers, options: Options) -> AsyncIterator[Line]:
    group, threshold = options.text("consumerGroup"), options.number("threshold", 0)
    for address in await servers.chosen(options):
        body = properties_line(group, str(threshold))
        await servers.ask(address, RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, body)
        yield Line(
            f"updateColdDataFlowCtrGroupConfig success, {address}",
            {"broker": address, "consumerGroup": group, "threshold": threshold},
        )


@command(
    "removeColdDataFlowCtrGroupConfig",
    "Remove consumer from cold ctr config.",
    GROUP,
    one_of=(BROKER_OR_CLUSTER,),
)
async def remove(servers: Servers, options: Options) -> AsyncIterator[Line]:
    group = options.text("consumerGroup")
    for address in await servers.chosen(options):
        await servers.ask(address, RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, group.encode())
        yield Line(
            f"remove broker cold read threshold success, {address}",
            {"broker": address, "consumerGroup": group},
        )


@command(
    "setCommitLogReadAheadMode",
    "Set read ahead mode for all commitlog files.",
    needed("m", "commitLogReadAheadMode", "0: the system reads ahead, 1: reads are random"),
    one_of=(BROKER_OR_CLUSTER,),
)
async def read_ahead(servers: Servers, options: Options) -> AsyncIterator[Line]:
    mode = options.text("commitLogReadAheadMode").strip()
    if mode not in ("0", "1"):
        raise MisuseError("set the read mode error; 0 is default, 1 random read")
    for heading, address in await headed(servers, options):
        yield Line(f" {heading}")
        answer = await servers.admin.ask(
            address, RequestCode.SET_COMMITLOG_READ_MODE, {"READ_AHEAD_MODE": mode}
        )
        yield Line(
            f"commitLog set readAhead mode rstStr{answer.remark or ''}",
            {"broker": address, "mode": int(mode)},
        )
