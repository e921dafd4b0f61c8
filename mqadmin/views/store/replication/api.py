"""The state of replication."""

from __future__ import annotations

from django.http import HttpRequest
from ninja import Router

from mqadmin.api import schemas
from mqadmin.api.auth import need
from mqadmin.audit import aaudited
from mqadmin.cluster.current import current_cluster
from mqadmin.facts.replication import ReplicationFacts

router = Router()


@router.get("/replication", response=schemas.schema_of(ReplicationFacts))
async def replication_facts(request: HttpRequest):
    """The role of this broker, its slaves with the part of the log that each has, or its master, and the end
    of the log that a failover now would lose."""
    return schemas.facts(current_cluster().store.replication())


@router.post("/replication/port", response=schemas.schema_of(ReplicationFacts))
async def take_slaves(request: HttpRequest):
    """Open a port for slaves on this machine, unless the broker has one; until the broker stops. `ha_port` is
    its number. A broker at another address than loopback needs haListenPort instead."""
    caller = need(request, "admin")
    async with aaudited(caller, "take_slaves", "store", "replication"):
        return schemas.facts(await current_cluster().store.take_slaves())
