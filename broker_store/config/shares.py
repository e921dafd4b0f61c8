"""The settings of what all connections of a port may have, and one address or one user of it."""

from __future__ import annotations

from dataclasses import dataclass

from broker_store.config.checks import network_list
from broker_store.config.setting import INT_MAX, setting
from broker_store.config.tls import TlsSettings

LEAST_UNFINISHED_BYTES = 32 << 20  # one address may have half of it, and the largest frame has 16 MiB


@dataclass(frozen=True)
class PortSettings(TlsSettings):
    """The settings that all ports of a process get."""

    max_percent_of_address: int = setting(
        "maxPercentOfAddress",
        50,
        "%",
        "how much of each total (connections, unfinished requests, waiting requests) one address may have, "
        "an IPv6 one with its /64; loopback may have all, 100 is no limit",
        low=1,
        high=100,
        ours=True,
    )
    max_unfinished_bytes: int = setting(
        "maxUnfinishedBytes",
        256 << 20,
        "bytes",
        "how much unfinished requests and unread answers of all connections of a port may take; at the gRPC "
        "port as much again for answers that wait for their clients. Then the connection with most of them "
        "is closed",
        low=LEAST_UNFINISHED_BYTES,
        high=INT_MAX,
        ours=True,
    )
    gateway_addresses: str = setting(
        "gatewayAddresses",
        "",
        "addresses",
        "addresses and networks of gateways, joined by a comma: many clients have such an address, so it may "
        "have all of each total; the client that a PROXY prologue names counts itself",
        check=network_list,
        ours=True,
    )
