"""What is in memory of the store's files, who reads what is not, and where each group stands; one look for
all who ask within some seconds."""

from __future__ import annotations

from broker_store.facts import cache
from broker_store.facts.directory import GroupOffsets
from mqadmin.shared_looks import SharedLooks

LEAST_REST = 100  # times the processor time of a look: who watches costs at most a hundredth of a core
PAGE_LOG_FILES = 24
PAGE_QUEUE_FILES = 10
SUMS = (
    "reads",
    "messages",
    "bytes",
    "per_s",
    "bytes_per_s",
    "cold_reads",
    "cold_messages",
    "cold_bytes",
    "cold_per_s",
    "cold_bytes_per_s",
)


class CacheLooks:
    """The newest look of a cluster; for threads."""

    def __init__(self, cluster):
        self._cluster = cluster
        self._looks = SharedLooks(LEAST_REST)

    def look(self) -> dict:
        """broker_store.facts.cache.residency, and "groups": [{"group", "topics", SUMS, "log_offset",
        "behind_bytes", "behind_messages", "topic", "queue_id"}], "reads": {"gets", "cold_gets", "cold_bytes",
        "cold_ms"}; who reads most cold first."""
        return self._looks.of(None, self._measure)

    def _measure(self) -> dict:
        known = self._cluster.reading_facts()
        store = self._cluster.directory()
        picture = cache.residency(store, known["wrote"])
        places, complete = cache.read_positions(store, known["offsets"], known["wrote"])
        if not complete:
            picture |= {
                "complete": False,
                "reason": picture["reason"]
                or f"the places of groups in {cache.MOST_QUEUES:,} queues were looked up, and there are more",
            }
        return picture | {"groups": _groups(known["reads"], places), "reads": known["totals"]}


def for_page(picture: dict) -> dict:
    """The picture as page and stream show it: the newest files of the log and those in which a group stands,
    and the queues' files with most in memory; `older` tells how many of the log were left out."""
    picture = cache.shown(picture, PAGE_QUEUE_FILES)
    log = [file for file in picture["files"] if file["kind"] == "commitlog"]
    places = [group["log_offset"] for group in picture["groups"] if group["log_offset"] is not None]
    old = [
        file
        for file in log[:-PAGE_LOG_FILES]
        if not any(file["base"] <= place < file["base"] + file["size"] for place in places)
    ]
    names = {file["name"] for file in old}
    files = [file for file in picture["files"] if file["kind"] != "commitlog" or file["name"] not in names]
    return picture | {"files": files, "older": len(old)}


def facts_of(parts) -> dict:
    """What the broker knows for a look. Any thread; of large tables in one, since it goes over all
    offsets."""
    store = parts.store
    totals = store.status.snapshot()["totals"]
    groups: GroupOffsets = {}
    for group, topic, queues in parts.offsets.everything():
        if not parts.offsets.is_broadcasting(group):
            groups.setdefault(group, {})[topic] = queues
    return {
        "wrote": store.status.positions()["wrote"],
        "offsets": groups,
        "reads": parts.statistics.reads(),
        "messages_in": lambda topic, queue_id: (
            store.reads.max_offset(topic, queue_id) - store.reads.min_offset(topic, queue_id)
        ),
        "totals": {name: totals[name] for name in ("gets", "cold_gets", "cold_bytes", "cold_ms")},
    }


def _groups(reads: list[dict], places: list[dict]) -> list[dict]:
    """A row a group that read or committed anything."""
    found: dict[str, dict] = {place["group"]: _unread(place["group"]) | place for place in places}
    for read in reads:
        row = found.setdefault(read["group"], _unread(read["group"]))
        row["topics"].append(read["topic"])
        for name in SUMS:
            row[name] += read[name]
    return sorted(
        found.values(),
        key=lambda row: (-row["cold_per_s"], -row["cold_bytes"], -(row["behind_bytes"] or 0), row["group"]),
    )


def _unread(group: str) -> dict:
    return {
        "group": group,
        "topics": [],
        **dict.fromkeys(SUMS, 0),
        **dict.fromkeys(("log_offset", "behind_bytes", "behind_messages", "topic", "queue_id")),
    }
