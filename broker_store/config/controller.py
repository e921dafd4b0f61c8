"""The settings of controller mode: which controllers elect the master, and when a slave counts as in sync.

Keys and defaults are those of Apache's `BrokerConfig` and `MessageStoreConfig`, except where a setting says
so.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker_store.config.setting import INT_MAX, Checked, setting


def _addresses(value: str) -> str | None:
    for address in filter(None, (part.strip() for part in value.split(";"))):
        host, _, port = address.rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) <= 65535:
            return f"expected host:port joined by semicolons, and {address} is none"
    return None


@dataclass(frozen=True)
class ControllerSettings(Checked):
    """A broker as a member of a set whose master Apache's controller elects."""

    enable_controller_mode: bool = setting(
        "enableControllerMode",
        False,
        "",
        "whether Apache's controllers give this broker its role; brokerRole and brokerId have no effect then",
    )
    controller_addr: str = setting(
        "controllerAddr",
        "",
        "host:port;..",
        "the controllers, in controller mode",
        check=_addresses,
    )
    broker_heartbeat_interval: int = setting(
        "brokerHeartbeatInterval",
        1000,
        "ms",
        "how often each controller gets a heartbeat; with enableSlaveActingMaster each name server",
        low=50,
        high=INT_MAX,
    )
    send_heartbeat_timeout_millis: int = setting(
        "sendHeartbeatTimeoutMillis",
        1000,
        "ms",
        "how long a controller has to answer a heartbeat",
        low=50,
        high=INT_MAX,
    )
    controller_heart_beat_timeout_mills: int = setting(
        "controllerHeartBeatTimeoutMills",
        10_000,
        "ms",
        "after which time without a heartbeat a controller counts this broker as dead",
        low=200,
        high=INT_MAX,
    )
    sync_broker_metadata_period: int = setting(
        "syncBrokerMetadataPeriod",
        5000,
        "ms",
        "how often the controller is asked who the master is; a change is also notified",
        low=50,
        high=INT_MAX,
    )
    sync_controller_metadata_period: int = setting(
        "syncControllerMetadataPeriod",
        10_000,
        "ms",
        "how often the controllers are asked which of them leads",
        low=50,
        high=INT_MAX,
    )
    check_sync_state_set_period: int = setting(
        "checkSyncStateSetPeriod",
        5000,
        "ms",
        "how often a master checks which slaves are in sync; it does so at each report as well",
        low=50,
        high=INT_MAX,
    )
    broker_election_priority: int = setting(
        "brokerElectionPriority",
        INT_MAX,
        "",
        "of brokers that have equal logs the one with the smaller number is elected",
        high=INT_MAX,
    )
    ha_max_time_slave_not_catchup: int = setting(
        "haMaxTimeSlaveNotCatchup",
        15_000,
        "ms",
        "a slave that has lacked something of the log for so long leaves the sync state set",
        low=100,
        high=INT_MAX,
    )
    min_in_sync_replicas: int = setting(
        "minInSyncReplicas",
        1,
        "brokers",
        "in controller mode sends are refused while the sync state set has fewer brokers, this one counted",
        low=1,
        high=64,
    )

    async_learner: bool = setting(
        "asyncLearner",
        False,
        "",
        "whether this broker only copies, in controller mode: as a slave it never joins the sync state "
        "set, so no send waits for it and it is not elected",
    )
    sync_from_last_file: bool = setting(
        "syncFromLastFile",
        False,
        "",
        "whether a slave with an empty store copies the last file of its master's log alone and what "
        "follows, in controller mode; false: the whole log",
    )

    @property
    def controllers(self) -> tuple[str, ...]:
        """The addresses of the controllers."""
        return tuple(filter(None, (part.strip() for part in self.controller_addr.split(";"))))
