"""What Apache's controllers answer, and the body of a sync state set (docs/spec/replication.md).

A sync state set has the ids of the brokers that have each acknowledged message. Its epoch goes up with each
change of it, the epoch of the master with each election.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from broker_store.errors import FieldError
from broker_store.formats.epochs import LAST_END, Epoch
from broker_store.protocol import fastjson
from broker_store.protocol.command import Command
from broker_store.protocol.headers import read_int, read_long
from broker_store.protocol.members import loads_object, read_list
from broker_store.protocol.members import read_int as read_member


class SyncStateSet(NamedTuple):
    """The ids of a set; epoch 0 stands for none yet."""

    members: frozenset[int]
    epoch: int


class Assignment(NamedTuple):
    """Who is the master of a broker's name, by its controller. The master is None while none lives."""

    master: int | None
    address: str
    epoch: int
    members: SyncStateSet


def write_set(members: Iterable[int], epoch: int) -> bytes:
    return fastjson.dumps({"syncStateSet": sorted(members), "syncStateSetEpoch": epoch})


def read_set(body: bytes, epoch: int | None = None) -> SyncStateSet:
    """Return the set of a body, with the epoch of the body or, where it has none, `epoch`. Raises
    FieldError."""
    value = loads_object(body)
    members = read_list(value, "syncStateSet")
    if not all(isinstance(member, int) and not isinstance(member, bool) for member in members):
        raise FieldError("syncStateSet", members, "an array of integers")
    return SyncStateSet(frozenset(members), read_member(value, "syncStateSetEpoch", epoch or 0))


def read_assignment(answer: Command) -> Assignment:
    """Return what an answer to 1002, 1003 or 1004 says. Raises FieldError."""
    fields = answer.fields or {}
    master, address = fields.get("masterBrokerId"), fields.get("masterAddress") or ""
    epoch = fields.get("syncStateSetEpoch")
    members = (
        read_set(answer.body, None if epoch is None else read_int("syncStateSetEpoch", epoch))
        if answer.body
        else SyncStateSet(frozenset(), 0)
    )
    stated = fields.get("masterEpoch")
    return Assignment(
        None if master is None or not address else read_long("masterBrokerId", master),
        address,
        0 if stated is None else read_int("masterEpoch", stated),
        members,
    )


def read_leader(fields: Mapping[str, str] | None) -> str | None:
    """Return the address of the leading controller of an answer to 1005; None while there is none."""
    return (fields or {}).get("controllerLeaderAddress") or None


def write_epochs(cluster: str, name: str, broker_id: int, epochs: Iterable[Epoch], log_end: int) -> bytes:
    """Return the answer to GET_BROKER_EPOCH_CACHE. `broker_id` is 0 for a master, as for name servers."""
    entries = [*epochs]
    ends = [*(epoch.begin for epoch in entries[1:]), LAST_END]
    return fastjson.dumps(
        {
            "brokerId": broker_id,
            "brokerName": name,
            "clusterName": cluster,
            "epochList": [
                {"endOffset": end, "epoch": epoch.number, "startOffset": epoch.begin}
                for epoch, end in zip(entries, ends, strict=False)
            ],
            "maxOffset": log_end,
        }
    )
