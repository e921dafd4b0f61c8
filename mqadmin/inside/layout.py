"""How topics lie in the log and what a replay costs, asked of the running broker; a look ends when nobody waits for it any more."""

from __future__ import annotations

import asyncio
import threading

from broker_store.errors import NotFoundError
from broker_store.inside.directory import GroupOffsets, StoreDirectory
from broker_store.inside.layout import Layout, Start


def cold_rate(totals: dict) -> float | None:
    """Bytes a second of one reader's thread, as measured by all cold reads since the start; None before there was one."""
    return totals["cold_bytes"] / totals["cold_ms"] * 1000 if totals["cold_ms"] else None


def check(topic: str | None, group: str | None, from_ms: int | None, from_offset: int | None) -> None:
    """ValueError when the question contradicts itself."""
    if topic and group:
        raise ValueError("Choose a topic or a group: what a group reads names its topics.")
    if from_ms is not None and from_offset is not None:
        raise ValueError("Choose a time or a place of the log to begin from, not both.")


def look(store: StoreDirectory, offsets: GroupOffsets, topic: str | None, group: str | None, from_ms: int | None, from_offset: int | None, **known) -> dict:
    """Layout.of a topic, or of what a group reads from where it stands unless a start is given; of_each without both."""
    check(topic, group, from_ms, from_offset)
    topics = [topic] if topic else sorted(offsets.get(group, {})) if group else []
    if group and group not in offsets:
        raise NotFoundError(f"group {group} has committed nothing: what it reads is not known")
    stands = offsets if group and from_ms is None and from_offset is None else None
    layout = Layout(store, Start(from_ms, from_offset, stands, group or ""), **known)
    return layout.of(topics) if topics else layout.of_each()


async def of_running(cluster, topic: str | None, group: str | None, from_ms: int | None, from_offset: int | None) -> dict:
    """`look` into the running broker's store, in a thread that stops when nobody waits for it any more."""
    known = cluster.reading_facts()
    stop = threading.Event()
    try:
        return await asyncio.to_thread(
            look,
            cluster.directory(),
            known["offsets"],
            topic,
            group,
            from_ms,
            from_offset,
            wrote=known["wrote"],
            cold_rate=cold_rate(known["totals"]),
            stopped=stop.is_set,
        )
    finally:
        stop.set()
