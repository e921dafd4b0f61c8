"""Replication as one broker sees it: its role, its slaves or its master, and what a failover now would lose
(docs/REPLICATION.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from broker_store.units import Moment, Small


@dataclass(frozen=True, slots=True, kw_only=True)
class SlaveFacts:
    """A slave that is connected to this master."""

    address: Annotated[str, "where its connection comes from"]
    broker_id: Annotated[Small | None, "in controller mode; null before it has said it"] = None
    reported: Annotated[int | None, "log offset up to which it has the log; null before its first report"]
    sent: Annotated[int, "log offset of the next byte for it"]
    behind_bytes: Annotated[int | None, "what it lacks of the log"]
    behind_ms: Annotated[int | None, "age of the first record that it lacks; null: none, or not known"]
    in_step: Annotated[bool, "lacks less than haMaxGapNotInSync; in controller mode: of the sync state set"]
    sent_bytes: Annotated[int, "sent since it connected"]
    bytes_per_s: Annotated[float | None, "sent in the last 10 s; null in its first second"]
    connected_ms: Annotated[int, "for how long it has been connected"]
    silent_ms: Annotated[int, "time since its last report"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlaveLeftFacts:
    """A slave whose connection ended."""

    address: Annotated[str, "where its connection came from"]
    at_ms: Annotated[Moment, "when its connection ended"]
    reported: Annotated[int, "log offset up to which it had the log"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterFacts:
    """The master of this slave."""

    ha_address: Annotated[str | None, "its HA port; null: no master is known"]
    broker_address: Annotated[str | None, "its broker port; null: no name server states it"]
    connected: bool
    stopped: Annotated[bool, "nothing is copied any more until the slave starts again"]
    error: Annotated[str | None, "why nothing is copied now"]
    received_bytes: Annotated[int, "of its log, since the start"]
    end: Annotated[int | None, "log offset up to which it has sent, or said that there is no more"]
    behind_bytes: Annotated[int | None, "of what it has sent, what is not in this log yet"]
    silent_ms: Annotated[int | None, "time since it sent something"]
    tables_at_ms: Annotated[Moment | None, "when topics, groups and offsets were last taken over"]
    tables_error: Annotated[str | None, "why they are not taken over now"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFacts:
    """An epoch of the log: what one master wrote."""

    number: Small
    begin: Annotated[int, "log offset"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerFacts:
    """A broker in controller mode."""

    leader: Annotated[str | None, "the controller that leads; null: none is known"]
    error: Annotated[str | None, "why the controllers give this broker no role now"]
    broker_id: Annotated[Small | None, "this broker's, of the controller; null: it has none yet"]
    master_id: Annotated[Small | None, "the master's; null: the controllers have not said it yet"]
    master_address: Annotated[str | None, "its broker port"]
    master_epoch: Annotated[Small | None, "goes up with each election"]
    in_sync: Annotated[list[Small], "ids of the sync state set, as this broker knows it"]
    set_epoch: Annotated[Small | None, "goes up with each change of the set"]
    counted: Annotated[list[Small], "of a master: ids that have each confirmed message"]
    epochs: Annotated[list[EpochFacts], "of this log, the last 20"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationFacts:
    """The state of replication."""

    role: Annotated[str, "ASYNC_MASTER, SYNC_MASTER or SLAVE"]
    ha_port: Annotated[Small | None, "port for slaves; null: none is open"]
    log_begin: Annotated[int, "log offset"]
    wrote: Annotated[int, "log offset of the next message"]
    flushed: Annotated[int, "log offset; what is before it is on the disk"]
    confirmed: Annotated[int, "log offset; readers see what is before it"]
    needed: Annotated[Small, "slaves that must have a message before it is acknowledged"]
    in_step: Annotated[Small, "slaves that are in step"]
    slaves: list[SlaveFacts]
    left: Annotated[SlaveLeftFacts | None, "the slave whose connection ended last, since the start"]
    master: Annotated[MasterFacts | None, "of a slave"]
    failover_loses_bytes: Annotated[
        int | None,
        "of a master: the end of its log that no slave has, the one that left last counted; null without a "
        "slave that has reported since the start",
    ]
    refused: Annotated[dict[str, int], "connections that were not taken or never reported, by cause"]
    controller: Annotated[ControllerFacts | None, "null without controller mode"] = None
