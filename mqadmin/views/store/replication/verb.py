"""manage.py store replication: the slaves or the master of this broker."""

from __future__ import annotations

from broker_store.units import fact_of, fields_of
from mqadmin.facts.replication import ReplicationFacts

SLAVES = {
    "address": "SLAVE",
    "reported": "HAS UP TO",
    "behind_bytes": "LACKS BYTES",
    "behind_ms": "LACKS MS",
    "in_step": "IN STEP",
    "bytes_per_s": "BYTES/S",
    "silent_ms": "SILENT MS",
}
EPOCHS = {"number": "EPOCH", "begin": "BEGINS AT"}
MASTER = {
    "ha_address": "MASTER",
    "connected": "CONNECTED",
    "end": "HAS SENT UP TO",
    "behind_bytes": "LACKS BYTES",
    "received_bytes": "RECEIVED BYTES",
    "error": "WHY NOT",
}


def add(verb) -> None:
    verb("replication", "slaves or master of this broker, and what a failover now would lose")


def replication(command, options) -> None:
    found = command.ask(options, lambda broker: broker.get("/store/replication"))
    if command.as_json:
        command.show(found)
        return
    facts = fact_of(ReplicationFacts, found)
    command.stdout.write(
        f"{facts.role}: wrote {facts.wrote:,}, flushed {facts.flushed:,}, confirmed {facts.confirmed:,}; "
        f"{facts.in_step} slaves in step, {facts.needed} needed"
    )
    if (known := facts.controller) is not None:
        members = ", ".join(map(str, known.in_sync)) or "empty"
        command.stdout.write(
            f"Controller mode: id {known.broker_id}, master {known.master_id} at {known.master_address}, "
            f"epoch {known.master_epoch}; sync state set {members} (epoch {known.set_epoch})"
        )
        if known.error is not None:
            command.stdout.write(f"The controllers give this broker no role now: {known.error}")
        command.show_table([fields_of(epoch) for epoch in known.epochs], EPOCHS, empty="no epoch yet")
    if facts.master is not None:
        command.show_table([fields_of(facts.master)], MASTER, empty="")
        return
    command.show_table([fields_of(slave) for slave in facts.slaves], SLAVES, empty="No slave is connected.")
    if facts.failover_loses_bytes is not None:
        command.stdout.write(f"A failover now would lose {facts.failover_loses_bytes:,} bytes of the log.")


VERBS = {"replication": replication}
