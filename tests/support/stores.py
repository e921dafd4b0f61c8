"""The stores that the real broker wrote, unpacked for a test, and the facts it gave about them
(tests/golden)."""

from __future__ import annotations

import csv
import functools
import gzip
import io
import json
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path

from broker_store.errors import FormatError
from broker_store.formats import record

GOLDEN = Path(__file__).parent.parent / "golden"
STORES = GOLDEN / "stores"


@dataclass(frozen=True)
class StoreSizes:
    """The file sizes a store was written with: what the real broker has in its settings."""

    mapped_file_size_commit_log: int
    mapped_file_size_consume_queue: int
    max_hash_slot_num: int
    max_index_num: int

    def overrides(self) -> dict[str, str]:
        """As Apache's properties."""
        return {
            "mappedFileSizeCommitLog": str(self.mapped_file_size_commit_log),
            "mappedFileSizeConsumeQueue": str(self.mapped_file_size_consume_queue),
            "maxHashSlotNum": str(self.max_hash_slot_num),
            "maxIndexNum": str(self.max_index_num),
        }


SIZES = {
    "clean": StoreSizes(262144, 20000, 5000, 20000),
    "clean-small": StoreSizes(262144, 2000, 500, 2000),
    "crash": StoreSizes(262144, 2000, 500, 2000),
    "broker-dir": StoreSizes(262144, 2000, 500, 2000),
    "golden-clean": StoreSizes(1048576, 20000, 1000, 4000),
    "golden-crash": StoreSizes(1048576, 20000, 1000, 4000),
}
CLEAN = ("clean", "clean-small", "broker-dir", "golden-clean")
NAMES = tuple(SIZES)
_TIMER_FILES = ("timerwheel", "timerlog")  # 38 and 100 MB of almost nothing; a store may lack them


@functools.cache
def _packed(name: str) -> tuple[Path, dict[Path, bytes | None]]:
    """Return the root of an archive's store, and the content of each path without the timer files; None for a
    directory. Hundreds of tests unpack the same six archives."""
    with tarfile.open(next(STORES.glob(f"{name}.tar.*"))) as tar:
        members = [m for m in tar if not any(part in _TIMER_FILES for part in Path(m.name).parts)]
        found: dict[Path, bytes | None] = {}
        for member in members:
            assert member.isdir() or member.isreg(), member
            content = tar.extractfile(member)
            found[Path(member.name)] = None if content is None else content.read()
    return Path(Path(members[0].name).parts[0]), found


def unpack(name: str, directory: Path, *, timer: bool = False) -> Path:
    """Unpack the store `name` below `directory`; returns its root. Without `timer` the timer wheel and log
    are left out.

    Its files are as old as the call: with the times of the archive a broker deletes them when the hour of
    deleteWhen has come.
    """
    root, found = _packed(name)
    if timer:
        with tarfile.open(next(STORES.glob(f"{name}.tar.*"))) as tar:
            tar.extractall(directory, [one.replace(mtime=time.time()) for one in tar], filter="data")
        return directory / root
    for path, content in found.items():
        if content is None:
            (directory / path).mkdir(parents=True, exist_ok=True)
        else:
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_bytes(content)
    return directory / root


@functools.cache
def facts(name: str) -> dict:
    """What the real store said (see tests/golden/README.md); do not change the answer."""
    return json.loads(gzip.decompress((STORES / f"{name}.facts.json.gz").read_bytes()))


@functools.cache
def messages(name: str) -> list[dict]:
    """One dict a message in commit log order; numbers as int."""
    text = gzip.decompress((STORES / f"{name}.messages.csv.gz").read_bytes()).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    return [
        {key: value if key in ("topic", "keys") else int(value) for key, value in row.items()} for row in rows
    ]


def variants() -> list[str]:
    """The names of the crash variants."""
    return list(facts("crash")["variants"])


def unpack_variant(variant: str, directory: Path) -> Path:
    """Unpack `crash` and do to it what the variant says; returns the store root."""
    root = unpack("crash", directory)
    for operation in facts("crash")["variants"][variant]["operations"]:
        path = root / operation["path"]
        if operation["op"] == "delete":
            path.unlink()
        elif operation["op"] == "write":
            with open(path, "r+b") as file:
                file.seek(operation["offset"])
                file.write(bytes.fromhex(operation["hex"]))
        else:
            raise ValueError(f"unknown operation {operation['op']}")
    return root


def log_bytes(root: Path) -> list[tuple[int, bytes]]:
    """(start offset, content) of each commit log file, in order."""
    return [(int(path.name), path.read_bytes()) for path in sorted((root / "commitlog").iterdir())]


def good_records(name: str, root: Path) -> list[record.StoredMessage]:
    """Every record of `name` that is sound where it lies, also after damaged ones: what the archive says is
    there and can be decoded."""
    files, file_bytes = dict(log_bytes(root)), SIZES[name].mapped_file_size_commit_log
    found = []
    for row in messages(name):
        at = row["physicalOffset"]
        base = at // file_bytes * file_bytes
        try:
            message = record.decode(files[base], at - base, log_offset=at)
        except FormatError:
            continue
        assert message.size == row["storeSize"]
        found.append(message)
    return found
