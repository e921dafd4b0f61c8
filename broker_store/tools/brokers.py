"""Commands about one broker: its state, settings, files."""

from __future__ import annotations

from collections.abc import AsyncIterator

from broker_store.errors import MisuseError
from broker_store.protocol.codes import RequestCode
from broker_store.protocol.route_bodies import MASTER_ID
from broker_store.tools import layout
from broker_store.tools.command import BROKER, BROKER_OR_CLUSTER, Line, Options, command, needed, option
from broker_store.tools.servers import Servers

CLUSTER_NAME = option("c", "cluster", "name of a cluster: each of its masters")


async def headed(servers: Servers, options: Options) -> list[tuple[str, str]]:
    """Return (heading, address) of the broker of an option, or of all brokers of a cluster, each slave after
    its master. Raises MisuseError, NotFoundError."""
    mark = "=" * 12
    if address := options.get("brokerAddr"):
        return [(f"{mark}{address}{mark}", address)]
    if "clusterName" not in options:
        raise MisuseError("--brokerAddr or --clusterName is needed")
    found = []
    for broker in await servers.brokers_of(options.text("clusterName")):
        master = broker.addresses.get(MASTER_ID)
        if master is not None:
            found.append((f"{mark}Master: {master}{mark}", master))
        for number, address in sorted(broker.addresses.items()):
            if number != MASTER_ID:
                of = master or "NO_MASTER"
                found.append((f"{mark}My Master: {of}=====Slave: {address}{mark}", address))
    return found


@command("brokerStatus", "Fetch broker runtime status data.", one_of=(BROKER_OR_CLUSTER,))
async def broker_status(servers: Servers, options: Options) -> AsyncIterator[Line]:
    for address in await servers.chosen(options):
        table = await servers.admin.broker_runtime_info(address)
        for name, value in sorted(table.items()):
            head = layout.line("%-24s %-32s: %s", address, name, value) if "clusterName" in options else None
            yield Line(head or layout.line("%-32s: %s", name, value))
        yield Line("", {"broker": address, "runtime": dict(sorted(table.items()))})


@command("getBrokerConfig", "Get broker config by cluster or special broker.", one_of=(BROKER_OR_CLUSTER,))
async def broker_config(servers: Servers, options: Options) -> AsyncIterator[Line]:
    for heading, address in await headed(servers, options):
        settings = await servers.admin.broker_config(address)
        for line in settings_lines(heading, settings, "broker", address):
            yield line


def settings_lines(heading: str, settings: dict[str, str], kind: str, address: str) -> list[Line]:
    """Return the settings of a server of a kind, below a heading."""
    return [
        Line(heading),
        *(Line(layout.line("%-50s=  %s", key, value)) for key, value in settings.items()),
        Line("", {kind: address, "config": settings}),
    ]


@command(
    "updateBrokerConfig",
    "Update broker's config.",
    needed("k", "key", "name of the setting"),
    needed("v", "value", "its new value"),
    option("a", "updateAllBroker", "with --clusterName: its slaves too", "true", "false"),
    one_of=(BROKER_OR_CLUSTER,),
)
async def update_config(servers: Servers, options: Options) -> AsyncIterator[Line]:
    key, value = options.text("key"), options.text("value")
    addresses = (
        [address for _, address in await headed(servers, options)]
        if options.yes("updateAllBroker") and "clusterName" in options
        else await servers.chosen(options)
    )
    for address in addresses:
        await servers.ask(address, RequestCode.UPDATE_BROKER_CONFIG, body=properties_line(key, value))
        yield Line(
            f"update broker config success, {address}", {"broker": address, "key": key, "value": value}
        )


def properties_line(key: str, value: str) -> bytes:
    """Return a setting as the body of a change. Raises MisuseError."""
    if not key.strip() or any(letter in key + value for letter in "\r\n") or "=" in key:
        raise MisuseError(f"--key {key:.60}: expected the name of a setting, and a value of one line")
    return f"{key.strip()}={value}\n".encode()


def _at_all(name: str, about: str, code: RequestCode) -> None:
    """Register a command that asks a broker, the masters of a cluster, or all masters, for one thing."""

    @command(name, about, option("b", "brokerAddr", BROKER.about), CLUSTER_NAME)
    async def ask(servers: Servers, options: Options) -> AsyncIterator[Line]:
        if "brokerAddr" in options:
            addresses = [options.text("brokerAddr")]
        else:
            addresses = [
                address
                for cluster in await servers.clusters(options.get("cluster"))
                for address in await servers.masters_of(cluster)
            ]
        for address in addresses:
            await servers.ask(address, code)
        yield Line("success", {"brokers": addresses})


_at_all("cleanExpiredCQ", "Clean expired ConsumeQueue on broker.", RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
_at_all("cleanUnusedTopic", "Clean unused topic on broker.", RequestCode.CLEAN_UNUSED_TOPIC)
_at_all("deleteExpiredCommitLog", "Delete expired CommitLog files.", RequestCode.DELETE_EXPIRED_COMMITLOG)


@command(
    "resetMasterFlushOffset",
    "Reset master flush offset in slave.",
    needed("b", "brokerAddr", "address of the slave, host:port"),
    needed("o", "offset", "the offset in the log"),
)
async def reset_flush_offset(servers: Servers, options: Options) -> AsyncIterator[Line]:
    offset = options.number("offset", 0)
    await servers.ask(
        options.text("brokerAddr"), RequestCode.RESET_MASTER_FLUSH_OFFSET, master_flush_offset=offset
    )
    yield Line(f"reset master flush offset to {offset} success", {"offset": offset})


@command(
    "haStatus",
    "Fetch ha runtime status data.",
    one_of=(BROKER_OR_CLUSTER,),
)
async def ha_status(servers: Servers, options: Options) -> AsyncIterator[Line]:
    for address in await servers.chosen(options):
        found = await servers.ask_json(address, RequestCode.GET_BROKER_HA_STATUS)
        yield Line("")
        yield Line(f"#MasterAddr\t{address}")
        if found.get("master"):
            slaves = found.get("haConnectionInfo") or []
            yield Line(f"#MasterCommitLogMaxOffset\t{found.get('masterCommitLogMaxOffset')}")
            yield Line(f"#SlaveNum\t{len(slaves)}")
            yield Line(f"#InSyncSlaveNum\t{found.get('inSyncSlaveNums')}")
            row = "%-32s  %-16s %16s %16s %16s %16s"
            yield Line(
                row
                % (
                    "#SlaveAddr",
                    "#SlaveAckOffset",
                    "#Diff",
                    "#TransferSpeed(KB/s)",
                    "#Status",
                    "#TransferFromWhere",
                )
            )
            for each in slaves:
                speed = float(each.get("transferredByteInSecond") or 0) / 1024
                state = "OK" if each.get("inSync") else "Fall Behind"
                numbers = (each.get("slaveAckOffset"), each.get("diff"), f"{speed:.2f}")
                yield Line(row % (each.get("addr"), *numbers, state, each.get("transferFromWhere")))
        else:
            client = found.get("haClientRuntimeInfo") or {}
            speed = float(client.get("transferredByteInSecond") or 0) / 1024
            yield Line(f"#CommitLogMaxOffset\t{client.get('maxOffset')}")
            yield Line(f"#TransferSpeed(KB/s)\t{speed:.2f}")
            yield Line(f"#LastReadTime\t{client.get('lastReadTimestamp')}")
            yield Line(f"#LastWriteTime\t{client.get('lastWriteTimestamp')}")
            yield Line(f"#MasterFlushOffset\t{client.get('masterFlushOffset')}")
        yield Line("", {"broker": address} | found)
