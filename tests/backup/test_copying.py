"""Copies and sums, with holes, a throttle and a bound of room."""

from __future__ import annotations

import random
import zlib
from pathlib import Path

import pytest

from broker_store.backup.copying import PIECE_BYTES, Copier, Pace
from broker_store.engine.disk.disk import Disk, Usage
from broker_store.errors import DiskFullError


def content(rng: random.Random) -> bytes:
    """Bytes with runs of zeros, also at the begin, at the end and across pieces."""
    parts = [b""]
    for _ in range(rng.randrange(6)):
        length = rng.choice((1, 17, 4096, 70_000, PIECE_BYTES))
        parts.append(bytes(length) if rng.random() < 0.5 else rng.randbytes(length))
    return b"".join(parts)


@pytest.mark.parametrize("seed", range(30))
def test_a_copy_and_its_sum_are_those_of_the_bytes_with_and_without_holes(tmp_path, seed):
    rng = random.Random(seed)
    raw = content(rng)
    dense, sparse = tmp_path / "dense", tmp_path / "sparse"
    dense.write_bytes(raw)
    with sparse.open("wb") as file:
        for at in range(0, len(raw), 4096):
            if any(page := raw[at : at + 4096]):
                file.seek(at)
                file.write(page)
        file.truncate(len(raw))
    copier = Copier(Disk(), Pace())
    data = raw.rstrip(b"\0")
    expected = (len(raw), len(data), zlib.crc32(data))
    assert copier.sum_of(dense) == copier.sum_of(sparse) == expected
    assert copier.copy(sparse, tmp_path / "copy") == expected
    assert (tmp_path / "copy").read_bytes() == raw
    limit = rng.randrange(len(raw) + 1)
    cut = raw[:limit].rstrip(b"\0")
    assert copier.copy(dense, tmp_path / "cut", limit) == (len(raw), len(cut), zlib.crc32(cut))
    assert (tmp_path / "cut").read_bytes() == cut.ljust(len(raw), b"\0")
    assert copier.are_equal(dense, sparse, len(raw))
    assert copier.are_equal(dense, tmp_path / "cut", len(data)) == (cut == data)


def test_a_throttle_spends_a_second_for_the_bytes_of_a_second(tmp_path):
    now, slept = [100.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    pace = Pace(4_000_000, lambda: now[0], sleep)
    (tmp_path / "file").write_bytes(b"x" * 10_000_000)
    Copier(Disk(), pace).copy(tmp_path / "file", tmp_path / "copy")
    assert sum(slept) == pytest.approx(2.5)
    now[0] += 60  # it was not used meanwhile
    slept.clear()
    pace.spend(4_000_000)
    assert sum(slept) == pytest.approx(1)


def test_a_copy_ends_before_it_takes_the_last_room(tmp_path):
    class Filling(Disk):
        """A disk on which others write too."""

        asked = 0

        def usage(self, path: Path) -> Usage:
            self.asked += 1
            return Usage(1000 << 20, (200 << 20) if self.asked == 1 else (51 << 20))

    with (tmp_path / "file").open("wb") as file:
        for _ in range(66):
            file.write(b"x" * PIECE_BYTES)
    with pytest.raises(DiskFullError, match="52,428,800 stay free"):
        Copier(Filling(), Pace()).copy(tmp_path / "file", tmp_path / "copy")
