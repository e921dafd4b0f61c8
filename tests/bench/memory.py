"""What the processes of a broker hold in anonymous memory; mapped files are the page cache's. A page that
forked processes share counts once, divided among them."""

import time
from pathlib import Path

STEP_S = 2
STILL_STEPS = 5  # as many looks that find the same
STILL_MB = 1.0
SETTLE_LIMIT_S = 180


def at_rest(pid: int) -> dict:
    """Megabytes of the process and of it with all its descendants, once these stay as they are: children go
    on importing after READY.

    Raises RuntimeError when they still change after SETTLE_LIMIT_S.
    """
    each = settled(pid)
    return {"broker_anon_mb": each[pid], "all_anon_mb": sum(each.values()), "processes": len(each)}


def settled(pid: int) -> dict[int, float]:
    """Megabytes of each process of the family, when STILL_STEPS looks found the same processes and the same
    sum."""
    deadline = time.monotonic() + SETTLE_LIMIT_S
    looks: list[dict[int, float]] = []
    while time.monotonic() < deadline:
        looks = [*looks[1 - STILL_STEPS :], {one: anonymous_mb(one) for one in family(pid)}]
        sums = [sum(look.values()) for look in looks]
        if (
            len(looks) == STILL_STEPS
            and len({frozenset(look) for look in looks}) == 1
            and max(sums) - min(sums) < STILL_MB
        ):
            return looks[-1]
        time.sleep(STEP_S)
    raise RuntimeError(
        f"memory of process {pid} and its children still changes after {SETTLE_LIMIT_S} s: {looks[-1]}"
    )


def family(pid: int) -> list[int]:
    """The process and all its descendants."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:  # ended meanwhile
            continue
        parent = int(text.rpartition(")")[2].split()[1])
        children.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def anonymous_mb(pid: int) -> float:
    """Return the process's part of its anonymous pages; 0 when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("Pss_Anon:"))
