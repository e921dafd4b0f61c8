"""The settings of acting masters: a slave does what only a master does while its master is gone.

Keys and defaults are those of Apache's `BrokerConfig`.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker_store.config.setting import Checked, setting


@dataclass(frozen=True)
class ActingSettings(Checked):
    """When a slave acts for its master."""

    enable_slave_acting_master: bool = setting(
        "enableSlaveActingMaster",
        False,
        "",
        "whether the slave with the lowest id acts for a master that is gone: consumers go on there as at "
        "the master. For all brokers of a name, and the name servers need supportActingMaster",
    )
    enable_remote_escape: bool = setting(
        "enableRemoteEscape",
        False,
        "",
        "whether an acting slave sends delayed messages and timer messages that are due, and halves of "
        "transactions, to another master of its cluster that has the topic, and gives messages to pops whose "
        "records it has sent there; without it they wait for their master",
    )
    broker_not_active_timeout_millis: int = setting(
        "brokerNotActiveTimeoutMillis",
        10_000,
        "ms",
        "after so long without a report the name server counts such a broker as gone",
        low=1000,
        high=600_000,
    )
    sync_broker_member_group_period: int = setting(
        "syncBrokerMemberGroupPeriod",
        1000,
        "ms",
        "how often such a slave requests from its name servers which brokers of its name live",
        low=100,
        high=60_000,
    )
    skip_pre_online: bool = setting(
        "skipPreOnline",
        False,
        "",
        "whether a master with enableSlaveActingMaster registers without taking over first the offsets that "
        "its slave has newer",
    )
