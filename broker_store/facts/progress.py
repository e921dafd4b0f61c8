"""How fast positions move, from samples: a number that was not sampled twice, or that was set back meanwhile,
has no speed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker_store.engine.status.samples import Sample

SPEED_MS = 5 * 60_000  # the stretch before now that counts as "at present"
MIN_SPAN_MS = 15_000  # between two samples: a shorter time gives no speed

ReadSamples = Callable[[Callable[[str], bool], int], list[Sample]]


def no_samples(wanted: Callable[[str], bool], from_ms: int) -> list[Sample]:
    """For who has none."""
    return []


def speed(samples: Sequence[Sample], name: str) -> float | None:
    """What a number gains a second over the samples, from where it was set back last."""
    first: tuple[int, int] | None = None
    last: tuple[int, int] | None = None
    for at_ms, _, values in samples:
        value = values.get(name)
        if value is None or (last is not None and value < last[1]):
            first = last = None
        if value is not None:
            last = (at_ms, value)
            first = first or last
    if first is None or last is None or last[0] - first[0] < MIN_SPAN_MS:
        return None
    return (last[1] - first[1]) * 1000 / (last[0] - first[0])


def recent(samples: Sequence[Sample], now_ms: int) -> list[Sample]:
    """Those of the present, without what lies before the last gap."""
    found: list[Sample] = []
    for sample in samples:
        if not now_ms - SPEED_MS <= sample.at_ms <= now_ms:
            continue
        if found and is_gap(found[-1], sample):
            found.clear()
        found.append(sample)
    return found


def is_gap(before: Sample, after: Sample) -> bool:
    """Whether samples are missing between two."""
    return after.at_ms - before.at_ms > 2.5 * max(before.step_ms, after.step_ms)
