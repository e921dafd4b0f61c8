"""Requests about the broker itself: settings, state, statistics, cleaning."""

from __future__ import annotations

import logging
from collections.abc import Callable

from broker_store.broker.statistics import DAY_MS, HOUR_MS, MINUTE_MS, Meter
from broker_store.config.broker import BrokerSettings
from broker_store.config.live import ONLY_BY_SUPER_USERS
from broker_store.config.store import StoreSettings
from broker_store.errors import ConfigError
from broker_store.formats.config_json import DataVersion
from broker_store.protocol import fastjson, table_bodies
from broker_store.protocol.codes import RequestCode as R
from broker_store.protocol.codes import ResponseCode
from broker_store.protocol.command import Command
from broker_store.protocol.headers import read_header
from broker_store.server import runtime_info
from broker_store.server.addresses import is_of_this_machine
from broker_store.server.channel import Channel
from broker_store.server.handler import Handlers, Refusal
from broker_store.server.parts import BrokerParts

log = logging.getLogger(__name__)

UNLIMITED = -1
CHANGE = "change of a setting"  # what a refusal is counted for


class BrokerAdmin:
    """The handlers of the broker's settings, state, statistics and cleaning."""

    def __init__(self, parts: BrokerParts, waiting: Callable[[], int], max_waiting: int):
        """`waiting()` returns the number of requests that wait for other clients or for a cold read, at most
        `max_waiting`."""
        self._parts = parts
        self._waiting, self._max_waiting = waiting, max_waiting

    def handlers(self) -> Handlers:
        return {
            R.GET_BROKER_CONFIG: self.broker_config,
            R.UPDATE_BROKER_CONFIG: self.update_config,
            R.GET_BROKER_RUNTIME_INFO: self.runtime_info,
            R.GET_BROKER_HA_STATUS: self.ha_status,
            R.VIEW_BROKER_STATS_DATA: self.stats_data,
            R.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean_expired_queues,
            R.CLEAN_UNUSED_TOPIC: self.clean_unused_topics,
            R.DELETE_EXPIRED_COMMITLOG: self.delete_expired_log,
            R.GET_COLD_DATA_FLOW_CTR_INFO: self.cold_reads,
            R.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: self.refuse_cold_limit,
            R.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: self.without_cold_limit,
            R.SET_COMMITLOG_READ_MODE: self.refuse_read_mode,
        }

    def broker_config(self, command: Command, channel: Channel) -> Command:
        """Return the effective settings by Apache's names, one on each line."""
        version = fastjson.dumps(DataVersion().to_json()).decode()
        return command.answer(
            0, None, {"version": version}, table_bodies.encode_properties(self._parts.properties())
        )

    def update_config(self, command: Command, channel: Channel) -> Command:
        """Change settings that may be changed while the broker runs, and keep the change. A request changes
        all its keys or none."""
        given = table_bodies.decode_properties(command.body)
        if not given:
            raise Refusal(ResponseCode.NO_PERMISSION, "the body has no key=value", CHANGE)
        if guarded := sorted(ONLY_BY_SUPER_USERS & given.keys()):
            self._check_sender(guarded[0], command, channel)
        try:
            changed = self._parts.live.change(given, BrokerSettings, StoreSettings)
        except ConfigError as error:
            # Without the value, which may be a secret
            raise Refusal(ResponseCode.NO_PERMISSION, f"{error.key:.60}: {error.reason}", CHANGE) from None
        for key, (before, after) in changed.items():
            log.info("%s was changed from %s to %s by a request of %s", key, before, after, channel.remote)
        return command.answer()

    def _check_sender(self, key: str, command: Command, channel: Channel) -> None:
        """Raise Refusal if the sender may not change a setting that can stop all clients."""
        access = self._parts.access
        if access is None and not is_of_this_machine(channel.remote):
            why = "without access control it is changed from the broker's machine alone"
        elif access is not None and not access.is_super(command.code, command.fields):
            why = "only a super user may change it"
        else:
            return
        raise Refusal(ResponseCode.NO_PERMISSION, f"{key}: {why}", CHANGE)

    def runtime_info(self, command: Command, channel: Channel) -> Command:
        return command.answer(
            0,
            None,
            None,
            table_bodies.encode_table(
                runtime_info.runtime_table(self._parts, self._waiting(), self._max_waiting)
            ),
        )

    def clean_expired_queues(self, command: Command, channel: Channel) -> Command:
        """Do nothing: queue and index files are deleted together with the log files they refer to."""
        return command.answer()

    def clean_unused_topics(self, command: Command, channel: Channel) -> Command:
        """Do nothing: a queue without a topic gets one at the start, and deleting a topic deletes its
        queues."""
        return command.answer()

    def delete_expired_log(self, command: Command, channel: Channel) -> Command:
        """Delete the log files that are older than fileReservedTime now; retention does it at the hour of
        deleteWhen."""
        self._parts.store.cleaning.clean_expired()
        return command.answer()

    def cold_reads(self, command: Command, channel: Channel) -> Command:
        """Return the limits of cold reads in bytes, of which there are none: -1."""
        value = {
            "cgColdReadThreshold": UNLIMITED,
            "configTable": {},
            "globalColdReadThreshold": UNLIMITED,
            "runtimeTable": {},
        }
        return command.answer(0, None, None, fastjson.dumps(value))

    def refuse_cold_limit(self, command: Command, channel: Channel) -> Command:
        return command.answer(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            "cold reads of a group have no limit in bytes: they run beside the loop, some at a time of each "
            "group, and delay no other client",
        )

    def without_cold_limit(self, command: Command, channel: Channel) -> Command:
        """Do nothing: a group has no such limit."""
        return command.answer()

    def refuse_read_mode(self, command: Command, channel: Channel) -> Command:
        return command.answer(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            "cold reads are by position and ask for what they need; pages of the log are mapped one by one",
        )

    def stats_data(self, command: Command, channel: Channel) -> Command:
        """Return the messages or bytes of the last minute, hour and day. `avgpt`, the average per call, is
        not measured and is left out."""
        header = read_header(R.VIEW_BROKER_STATS_DATA, command.fields)
        meter, unit = self._meter(header.stats_name, header.stats_key)
        if meter is None:
            return command.answer(
                ResponseCode.SYSTEM_ERROR,
                f"The stats <{header.stats_name:.60}> <{header.stats_key:.255}> not exist",
            )
        value = {}
        for name, over_ms in (("statsMinute", MINUTE_MS), ("statsHour", HOUR_MS), ("statsDay", DAY_MS)):
            messages, size, seconds = meter.lately(self._parts.clock(), over_ms)
            total = size if unit == "SIZE" else messages
            value[name] = {"sum": total, "tps": total / seconds if seconds > 0 else 0.0}
        return command.answer(0, None, None, fastjson.dumps(value))

    def _meter(self, name: str, key: str) -> tuple[Meter | None, str]:
        """Return the meter for a name of Apache's, and its unit: NUMS for messages, SIZE for bytes. None if
        that is not measured."""
        statistics = self._parts.statistics
        what, _, unit = name.rpartition("_")
        topic, _, group = key.partition("@")
        if name == "TOPIC_PUT_NUMS":  # Apache's TOPIC_PUT_SIZE counts whole records, this meter bodies
            return statistics.topic(key), unit
        if what == "GROUP_GET" and unit in ("NUMS", "SIZE"):
            return statistics.group_topic(group, topic), unit
        if name == "SNDBCK_PUT_NUMS":
            return statistics.sent_back_of(group, topic), unit
        if name in ("BROKER_PUT_NUMS", "BROKER_GET_NUMS") and key == self._parts.cluster:
            return statistics.put if what == "BROKER_PUT" else statistics.got, unit
        return None, unit

    def ha_status(self, command: Command, channel: Channel) -> Command:
        replication, store = self._parts.replication, self._parts.store
        follower = replication.follower
        runtime: dict[str, object] = dict.fromkeys(
            (
                "lastReadTimestamp",
                "lastWriteTimestamp",
                "masterFlushOffset",
                "maxOffset",
                "transferredByteInSecond",
            ),
            0,
        )
        if follower is not None:
            runtime |= {
                "masterAddr": follower.master,
                "maxOffset": store.log.wrote,
                "activated": follower.master is not None,
            }
        positions = replication.positions()
        value = {
            "haClientRuntimeInfo": runtime,
            "haConnectionInfo": [
                {
                    "addr": slave.address,
                    "diff": slave.behind,
                    "inSync": slave.is_in_step,
                    "slaveAckOffset": slave.reported,
                    "transferFromWhere": slave.sent,
                    "transferredByteInSecond": int(slave.bytes_per_s or 0),
                }
                for slave in positions
                if slave.reported is not None
            ],
            "inSyncSlaveNums": sum(slave.is_in_step for slave in positions),
            "master": not replication.is_slave,
            "masterCommitLogMaxOffset": store.log.committed,
        }
        return command.answer(0, None, None, fastjson.dumps(value))
