"""The settings of replication: roles, the HA port, and how many brokers must have a message.

Keys and defaults are those of Apache's `MessageStoreConfig`, except where a setting says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker_store.config.checks import network_list
from broker_store.config.setting import INT_MAX, Checked, setting

ASYNC_MASTER, SYNC_MASTER, SLAVE = "ASYNC_MASTER", "SYNC_MASTER", "SLAVE"


@dataclass(frozen=True)
class ReplicationSettings(Checked):
    """What a broker copies, from whom, and whom it waits for."""

    broker_role: str = setting(
        "brokerRole",
        ASYNC_MASTER,
        "",
        "ASYNC_MASTER acknowledges from this broker's copy alone; SYNC_MASTER when inSyncReplicas brokers "
        "have the message; a SLAVE refuses sends and copies its master's log",
        choices=(ASYNC_MASTER, SYNC_MASTER, SLAVE),
    )
    ha_listen_port: int = setting(
        "haListenPort",
        0,
        "port",
        "where slaves connect to a master; 0: none for ASYNC_MASTER, and listenPort + 1 for SYNC_MASTER "
        "(Apache's broker opens listenPort + 1 always)",
        high=65535,
    )
    ha_slave_addresses: str = setting(
        "haSlaveAddresses",
        "",
        "addresses",
        "addresses and networks of slaves, joined by a comma; without it those of this machine alone. The HA "
        "port gives the whole log to each of them: Apache's protocol has no access control there",
        ours=True,
        check=network_list,
    )
    ha_master_address: str = setting(
        "haMasterAddress",
        "",
        "host:port",
        "the HA port that a slave copies from; without it the one that its name server states",
    )
    ha_tls_enable: bool = setting(
        "haTlsEnable",
        True,
        "",
        "whether a slave with tls.enable connects to the HA port of its master by TLS too; false for a "
        "master of Apache's, which has no TLS there",
        ours=True,
    )
    in_sync_replicas: int = setting(
        "inSyncReplicas",
        2,
        "brokers",
        "with SYNC_MASTER a send is acknowledged when so many brokers have it, this one counted; Apache's "
        "default 1 waits for no slave",
        low=1,
        high=64,
    )
    slave_timeout: int = setting(
        "slaveTimeout",
        3000,
        "ms",
        "how long a send waits for slaves before it is answered FLUSH_SLAVE_TIMEOUT; it is stored",
        low=1,
        high=INT_MAX,
    )
    ha_max_gap_not_in_sync: int = setting(
        "haMaxGapNotInSync",
        256 << 20,
        "bytes",
        "a slave that lacks so much of the log does not count as in step",
        low=1,
        high=1 << 40,
    )
    slave_read_enable: bool = setting(
        "slaveReadEnable",
        True,
        "",
        "whether a slave serves pulls, and a master sends groups that read what is no longer in memory "
        "to its slave; Apache's default is false: its consumers stop with the master",
    )
    ha_transfer_batch_size: int = setting(
        "haTransferBatchSize",
        1 << 20,
        "bytes",
        "the log in one frame to a slave; Apache's default is 32768, and its slave takes less than 4 MiB",
        low=1024,
        high=(4 << 20) - 16,
    )
    ha_send_heartbeat_interval: int = setting(
        "haSendHeartbeatInterval",
        5000,
        "ms",
        "how long a connection between master and slave is silent before something is sent",
        low=100,
        high=INT_MAX,
    )
    ha_housekeeping_interval: int = setting(
        "haHousekeepingInterval",
        20_000,
        "ms",
        "how long a master and a slave wait for the other before they close the connection",
        low=500,
        high=INT_MAX,
    )

    @property
    def feeds_slaves(self) -> bool:
        """True for a master with an HA port."""
        return self.broker_role == SYNC_MASTER or (
            self.broker_role == ASYNC_MASTER and self.ha_listen_port > 0
        )
