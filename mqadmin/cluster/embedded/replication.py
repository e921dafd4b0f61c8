"""The state of replication of the broker in this process."""

from __future__ import annotations

import time

from broker_store.replication.positions import SlavePosition
from broker_store.server.parts import BrokerParts
from mqadmin.facts.replication import (
    ControllerFacts,
    EpochFacts,
    MasterFacts,
    ReplicationFacts,
    SlaveFacts,
    SlaveLeftFacts,
)

MAX_EPOCHS_SHOWN = 20


def replication_of(parts: BrokerParts) -> ReplicationFacts:
    """Return the state. Loop's thread."""
    replication, store = parts.replication, parts.store
    positions = store.status.positions()
    slaves = replication.positions()
    left = _left(parts)
    # Also the slave that left has its copy.
    reported = [
        slave.reported for slave in (*slaves, *([left] if left else ())) if slave.reported is not None
    ]
    return ReplicationFacts(
        role=parts.store_settings.broker_role,
        ha_port=replication.port or None,
        log_begin=positions.min or 0,
        wrote=store.log.wrote,
        flushed=store.log.flushed,
        confirmed=store.confirmed,
        needed=replication.needed,
        in_step=sum(slave.is_in_step for slave in slaves),
        slaves=[_slave(parts, slave) for slave in slaves],
        left=left,
        master=_master(parts) if replication.is_slave else None,
        failover_loses_bytes=max(0, store.log.wrote - max(reported)) if reported else None,
        refused=dict(replication.feeder.refused) if replication.feeder is not None else {},
        controller=_controller(parts),
    )


def _slave(parts: BrokerParts, slave: SlavePosition) -> SlaveFacts:
    first_ms = None
    if slave.reported is not None and slave.behind:
        first_ms = parts.store.log.stored_ms(slave.reported)
    return SlaveFacts(
        address=slave.address,
        broker_id=slave.number,
        reported=slave.reported,
        sent=slave.sent,
        behind_bytes=slave.behind,
        behind_ms=None if first_ms is None else max(0, parts.clock() - first_ms),
        in_step=slave.is_in_step,
        sent_bytes=slave.sent_bytes,
        bytes_per_s=slave.bytes_per_s,
        connected_ms=int(slave.connected_s * 1_000),
        silent_ms=int(slave.silent_s * 1_000),
    )


def _left(parts: BrokerParts) -> SlaveLeftFacts | None:
    feeder = parts.replication.feeder
    left = None if feeder is None else feeder.left
    return None if left is None else SlaveLeftFacts(**left._asdict())


def _controller(parts: BrokerParts) -> ControllerFacts | None:
    replication, membership = parts.replication, parts.replication.membership
    if membership is None:
        return None
    assignment, in_sync = replication.assignment, replication.in_sync
    given = in_sync.given if in_sync is not None else assignment.members if assignment is not None else None
    return ControllerFacts(
        leader=membership.controller.leader,
        error=membership.controller.error,
        broker_id=membership.number or None,
        master_id=assignment.master if assignment is not None else None,
        master_address=assignment.address if assignment is not None else None,
        master_epoch=assignment.epoch if assignment is not None else None,
        in_sync=sorted(given.members) if given is not None else [],
        set_epoch=given.epoch if given is not None else None,
        counted=sorted(in_sync.counted) if in_sync is not None else [],
        epochs=[
            EpochFacts(number=epoch.number, begin=epoch.begin)
            for epoch in membership.history.entries[-MAX_EPOCHS_SHOWN:]
        ],
    )


def _master(parts: BrokerParts) -> MasterFacts:
    known, follower, tables = parts.replication.master, parts.replication.follower, parts.replication.tables
    end = follower.master_end if follower is not None else None
    heard_s = follower.heard_s if follower is not None else 0.0
    return MasterFacts(
        ha_address=known.ha if known is not None else None,
        broker_address=known.broker if known is not None else None,
        connected=parts.replication.has_master,
        stopped=follower is not None and follower.has_stopped,
        error=follower.error if follower is not None else None,
        received_bytes=follower.received_bytes if follower is not None else 0,
        end=end,
        behind_bytes=None if end is None else max(0, end - parts.store.log.wrote),
        silent_ms=int((time.monotonic() - heard_s) * 1_000) if heard_s else None,
        tables_at_ms=tables.taken_ms if tables is not None else None,
        tables_error=tables.error if tables is not None else None,
    )
