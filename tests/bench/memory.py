"""What the processes of a broker hold in memory that is theirs alone (RssAnon; mapped files are the page cache's)."""

import socket
import time
from pathlib import Path

SETTLE_S = 10


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def at_rest(pid: int) -> dict:
    """Megabytes of the process and of it with all its descendants, some seconds after the start."""
    time.sleep(SETTLE_S)
    each = {one: rss_anon_mb(one) for one in family(pid)}
    return {"broker_rss_anon_mb": each[pid], "all_rss_anon_mb": sum(each.values()), "processes": len(each)}


def family(pid: int) -> list[int]:
    """The process and all its descendants."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:   # ended meanwhile
            continue
        parent = int(text.rpartition(")")[2].split()[1])
        children.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def rss_anon_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1000
    return 0.0
