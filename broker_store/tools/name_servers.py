"""Commands about the name servers."""

from __future__ import annotations

from collections.abc import AsyncIterator

from broker_store.client.errors import ClientError
from broker_store.protocol.codes import RequestCode
from broker_store.protocol.table_bodies import decode_properties
from broker_store.tools.brokers import properties_line, settings_lines
from broker_store.tools.command import Line, Options, command, needed
from broker_store.tools.servers import Servers

NAMESPACE = needed("s", "namespace", "name of the namespace")
KEY = needed("k", "key", "the key")
BROKER_NAME = needed("b", "brokerName", "name of the broker")


async def _permission(
    servers: Servers, options: Options, code: RequestCode, what: str
) -> AsyncIterator[Line]:
    """Take the right to write to a broker away at each name server, or give it back."""
    name = options.text("brokerName")
    for nameserver in servers.nameservers:
        begin = f"{what} write perm of broker[{name}] in name server[{nameserver}]"
        try:
            answer = await servers.ask(nameserver, code, broker_name=name)
        except ClientError as error:
            fact = {"nameServer": nameserver, "topics": None, "error": str(error)}
            yield Line(f"{begin} Failed", fact)
            continue
        count = int((answer.fields or {}).get(f"{what}TopicCount", 0))
        yield Line(f"{begin} OK, {count}", {"nameServer": nameserver, "topics": count})


@command(
    "wipeWritePerm",
    "Wipe write perm of broker in all name server you defined in the -n param.",
    BROKER_NAME,
)
def wipe(servers: Servers, options: Options) -> AsyncIterator[Line]:
    return _permission(servers, options, RequestCode.WIPE_WRITE_PERM_OF_BROKER, "wipe")


@command(
    "addWritePerm",
    "Add write perm of broker in all name server you defined in the -n param.",
    BROKER_NAME,
)
def add(servers: Servers, options: Options) -> AsyncIterator[Line]:
    return _permission(servers, options, RequestCode.ADD_WRITE_PERM_OF_BROKER, "add")


@command(
    "updateKvConfig",
    "Create or update KV config.",
    NAMESPACE,
    KEY,
    needed("v", "value", "the value"),
)
async def put(servers: Servers, options: Options) -> AsyncIterator[Line]:
    await servers.admin.put_config(options.text("namespace"), options.text("key"), options.text("value"))
    yield Line("create or update kv config to namespace success.", {"key": options.text("key")})


@command("deleteKvConfig", "Delete KV config.", NAMESPACE, KEY)
async def delete(servers: Servers, options: Options) -> AsyncIterator[Line]:
    await servers.admin.delete_config(options.text("namespace"), options.text("key"))
    yield Line("delete kv config from namespace success.", {"key": options.text("key")})


@command("getNamesrvConfig", "Get configs of name server.")
async def config(servers: Servers, options: Options) -> AsyncIterator[Line]:
    mark = "=" * 12
    for nameserver in servers.nameservers:
        answer = await servers.ask(nameserver, RequestCode.GET_NAMESRV_CONFIG)
        settings = decode_properties(answer.body)
        for line in settings_lines(f"{mark}{nameserver}{mark}", settings, "nameServer", nameserver):
            yield line


@command(
    "updateNamesrvConfig",
    "Update configs of name server.",
    needed("k", "key", "name of the setting"),
    needed("v", "value", "its new value"),
)
async def update(servers: Servers, options: Options) -> AsyncIterator[Line]:
    key, value = options.text("key"), options.text("value")
    for nameserver in servers.nameservers:
        await servers.ask(nameserver, RequestCode.UPDATE_NAMESRV_CONFIG, properties_line(key, value))
    shown = ", ".join(servers.nameservers)
    yield Line(
        f"update name server config success![{shown}]\n{key} : {value}",
        {"nameServers": list(servers.nameservers), "key": key, "value": value},
    )
