"""The settings of the name server."""

from __future__ import annotations

from dataclasses import dataclass

from broker_store.config.checks import network_list
from broker_store.config.setting import setting
from broker_store.config.shares import PortSettings


@dataclass(frozen=True)
class NameServerSettings(PortSettings):
    """The settings that the name server gets."""

    listen_port: int = setting(
        "listenPort", 9876, "port", "where brokers and clients connect; 0 takes any", high=65535
    )
    scan_not_active_broker_interval: int = setting(
        "scanNotActiveBrokerInterval",
        10_000,
        "ms",
        "how often brokers without a heartbeat are searched",
        low=100,
        high=600_000,
    )
    return_order_topic_config_to_broker: bool = setting(
        "returnOrderTopicConfigToBroker",
        True,
        "",
        "whether a registration is answered with the ordered topics of the key-value table",
        live=True,
    )
    delete_topic_with_broker_registration: bool = setting(
        "deleteTopicWithBrokerRegistration",
        False,
        "",
        "whether a topic missing from a broker's registration is dropped from its routes",
    )
    order_message_enable: bool = setting(
        "orderMessageEnable",
        False,
        "",
        "whether a route names the brokers and queues that ORDER_TOPIC_CONFIG has for its topic",
        live=True,
    )
    support_acting_master: bool = setting(
        "supportActingMaster",
        False,
        "",
        "whether the lowest slave of a broker without a master is shown as its master, for reading",
    )
    notify_min_broker_id_changed: bool = setting(
        "notifyMinBrokerIdChanged",
        False,
        "",
        "whether the brokers of a name are notified when its lowest id changes: a slave with "
        "enableSlaveActingMaster then acts, or ends to, at once; from a name server of its own unsigned and "
        "without TLS",
    )
    name_server_change_addresses: str = setting(
        "nameServerChangeAddresses",
        "",
        "addresses",
        "addresses and networks, joined by a comma, that may change the name server: register brokers, set "
        "keys and permissions; requests of its own machine may always. Empty: every address, but none if the "
        "name server is one of runbroker, which has another --bind than loopback and no --insecure",
        check=network_list,
        ours=True,
    )
