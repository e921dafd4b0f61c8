"""Archive: the records of a store as Parquet files by topic and day, one stretch of the log after another.

    OUT/manifest.json                            which stretches are archived, and their files: the truth
    OUT/records/topic=T/day=2026-11-21/FROM-00000.parquet
    OUT/unfinished/                              what a run is writing
    OUT/lock                                     held while a run lasts

A run continues where the manifest ends. For each stretch it writes to unfinished/, moves the files to their
places, and adds the stretch to the manifest (a new file beside the old, synced, renamed). If it is killed at
any point, the next run removes files that the manifest does not name and reads that stretch again from the
log. So no record is missing or there twice. File names depend on the stretch, and rows have the order of the
log, so a stretch always gives the same files.

A reader that must see exactly the archived records while a run may be active reads the files that the
manifest names.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from broker_store.engine.disk.disk import Disk
from broker_store.errors import DamagedStoreError, MisuseError
from broker_store.formats import record
from broker_store.pipeline import splits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMAT = 1
STEP_BYTES = 1 << 30  # of the log, committed together: what a killed run loses at most
FILE_BYTES = 256 << 20  # of the log, approximately, in one file of a topic and day: no task has to hold more
DAY_UTC = "yyyy-MM-dd"


def archive(
    read: Callable[..., DataFrame],
    store: Path,
    live_page: Path | None,
    out: Path,
    on_progress,
    step_bytes: int = STEP_BYTES,
) -> dict:
    """Extend the archive `out` to the end of the store.

    Returns {"records", "bytes", "files", "from", "to", "missing", "days", "doubt"} of this run. `days` has
    {topic, day, records, bytes, files}. `doubt` explains why a message may be in another day than its
    neighbours; None without a reason.
    """
    disk = Disk()
    live = splits.position_of(live_page, disk)
    files = splits.log_files(store, disk, live)
    disk.make_directory(out / "records")
    with open(out / "lock", "w") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise MisuseError(f"another run is writing to the archive {out}") from None
        manifest = _read_manifest(out)
        _check_complete(out, manifest)
        _remove_unnamed(out, manifest)
        _check_same_store(manifest, files, disk, out)
        first = files[0][1] if files else 0
        begin = max(manifest["to"], first)
        if begin > manifest["to"] and manifest["runs"]:
            # The broker deleted it before it was archived
            manifest["missing"].append([manifest["to"], begin])
        done = {
            "records": 0,
            "bytes": 0,
            "files": 0,
            "from": begin,
            "to": begin,
            "missing": manifest["missing"],
        }
        days: dict[tuple[str, str], dict] = {}
        end = files[-1][2] if files else 0
        while done["to"] < end:
            on_progress(
                f"stretch {(done['to'] - begin) // step_bytes + 1} of {-(-(end - begin) // step_bytes)}", 0, 0
            )
            until = _step_end(store, files, done["to"], end, step_bytes, disk)
            written = _archive_stretch(read, out, manifest, done["to"], until, is_last=until == end)
            for name in ("records", "bytes", "files"):
                done[name] += written[name]
            for topic, day, records, size in written["parts"]:
                part = days.setdefault(
                    (topic, day), {"topic": topic, "day": day, "records": 0, "bytes": 0, "files": 0}
                )
                part["records"], part["bytes"], part["files"] = (
                    part["records"] + records,
                    part["bytes"] + size,
                    part["files"] + 1,
                )
            done["to"] = written["to"]
            if until == end:
                break
        done["days"] = [days[key] for key in sorted(days)]
        done["doubt"] = splits.time_doubt(begin, done["to"], store, live, disk)
    return done


def _step_end(store: Path, files, begin: int, end: int, step_bytes: int, disk: Disk) -> int:
    """Return where a record begins, about `step_bytes` ahead; the file's end when the queues have no record
    in it."""
    if end - begin <= step_bytes:
        return end
    target = begin + step_bytes
    cuts = splits.find_cuts(store, files, [target], step_bytes, disk)
    return cuts[0] if cuts else next(file_end for _, base, file_end in files if base <= target <= file_end)


def _archive_stretch(
    read: Callable[..., DataFrame], out: Path, manifest: dict, begin: int, until: int, is_last: bool
) -> dict:
    """Write, move and commit a stretch.

    The last stretch ends with its last record, because what follows in the file may be written later.
    """
    from pyspark.sql import functions as f

    disk = Disk()
    unfinished = out / "unfinished"
    rows = read("records", from_offset=begin, to_offset=until)
    rows = rows.withColumn("day", f.date_format("store_time", DAY_UTC)).withColumn(
        "part", f.floor((f.col("log_offset") - begin) / FILE_BYTES)
    )
    # One task for each topic, day and part, with rows in the order of the log, so that a stretch always gives
    # the same files.
    ordered = rows.repartition("topic", "day", "part").sortWithinPartitions(
        "topic", "day", "part", "log_offset"
    )
    ordered.write.mode("overwrite").partitionBy("topic", "day", "part").option("compression", "zstd").parquet(
        str(unfinished)
    )
    stretch: dict[str, Any] = {"from": begin, "files": [], "records": 0, "bytes": 0}
    to, last = begin, manifest["last"]
    for path in sorted(unfinished.rglob("*.parquet")):
        about = _facts_of(path)
        part = int(path.parent.name.removeprefix("part="))
        place = Path("records") / path.parent.parent.parent.name / path.parent.parent.name
        stretch["files"].append({"path": place / f"{begin:020d}-{part:05d}.parquet", "source": path, **about})
        stretch["records"] += about["records"]
        stretch["bytes"] += about["bytes"]
        if about["end"] > to:
            to, last = about["end"], about["last"]
    stretch["to"] = to = to if is_last else until
    for file in stretch["files"]:
        target = out / file["path"]
        disk.make_directory(target.parent)
        _sync(file["source"])
        os.replace(file.pop("source"), target)
        disk.sync_directory(target.parent)
        del file["end"], file["last"]
        file["path"] = str(file["path"])
    if stretch["files"]:
        manifest["runs"].append(stretch)
    if to > begin:
        manifest["to"], manifest["last"] = to, last
        _write_manifest(out, manifest)
    shutil.rmtree(unfinished)
    parts = [(*_topic_and_day(file["path"]), file["records"], file["bytes"]) for file in stretch["files"]]
    return {
        "records": stretch["records"],
        "bytes": stretch["bytes"],
        "files": len(stretch["files"]),
        "to": to,
        "parts": parts,
    }


def _topic_and_day(path: str) -> tuple[str, str]:
    """Return topic and day of records/topic=T/day=D/FILE; in a folder's name `%` is written as `%25`."""
    _, topic, day, _ = path.split("/")
    return unquote(topic.removeprefix("topic=")), day.removeprefix("day=")


def _facts_of(path: Path) -> dict:
    """Return rows, bytes and the last record of a file, whose rows have the order of the log."""
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    groups = file.metadata.num_row_groups
    rows = file.read_row_group(groups - 1, columns=["log_offset", "record_bytes", "body_crc", "queue_offset"])
    last = rows.slice(rows.num_rows - 1).to_pylist()[0]
    return {
        "records": file.metadata.num_rows,
        "bytes": path.stat().st_size,
        "end": last["log_offset"] + last["record_bytes"],
        "last": last,
    }


# The manifest -------------------------------------------------------------------------------------


def _read_manifest(out: Path) -> dict:
    try:
        manifest = json.loads((out / "manifest.json").read_bytes())
    except FileNotFoundError:
        if any((out / "records").rglob("*.parquet")):
            raise MisuseError(
                f"{out}/records holds files and no manifest.json says which count; put the manifest "
                f"back, or archive to another directory"
            ) from None
        manifest = {"format": FORMAT, "to": 0, "last": None, "missing": [], "runs": []}
        # Written before the first file, so that files without a manifest are never removed as ours
        _write_manifest(out, manifest)
        return manifest
    except ValueError as error:
        raise MisuseError(
            f"{out}/manifest.json cannot be read ({error}); put back a copy of it, or archive to "
            f"another directory"
        ) from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise MisuseError(f"{out}/manifest.json is of another format; archive to another directory")
    return manifest


def _write_manifest(out: Path, manifest: dict) -> None:
    Disk().replace_file(out / "manifest.json", json.dumps(manifest, indent=1).encode())


def _check_complete(out: Path, manifest: dict) -> None:
    """Verify that the files in the manifest exist: a run never writes an earlier stretch again."""
    disk = Disk()
    for run in manifest["runs"]:
        for file in run["files"]:
            path = out / file["path"]
            size = disk.size_of(path) if disk.exists(path) else None
            if size != file["bytes"]:
                found = "is not there" if size is None else f"has {size} bytes, not {file['bytes']}"
                raise MisuseError(
                    f"the archive's file {path} {found}; put back a copy of it, or archive to "
                    f"another directory"
                )


def _remove_unnamed(out: Path, manifest: dict) -> None:
    """Remove what a killed run left."""
    shutil.rmtree(out / "unfinished", ignore_errors=True)
    named = {str(out / file["path"]) for run in manifest["runs"] for file in run["files"]}
    for path in (out / "records").rglob("*.parquet"):
        if str(path) not in named:
            path.unlink()


def _check_same_store(manifest: dict, files, disk: Disk, out: Path) -> None:
    """Verify that the last archived record is in this log, if the log still has its place."""
    last = manifest["last"]
    if last is None:
        return
    for path, base, end in files:
        if base <= last["log_offset"] < end:
            with disk.open_reader(path) as reader:
                raw = reader.read(last["log_offset"] - base, record.FIXED_IPV4.size)
            found = dict(zip(record.FIXED_IPV4.offset, record.FIXED_IPV4.unpack(raw), strict=True))
            wanted = {
                "log_offset": last["log_offset"],
                "total_size": last["record_bytes"],
                "body_crc": last["body_crc"],
                "queue_offset": last["queue_offset"],
            }
            if {name: found[name] for name in wanted} != wanted:
                raise DamagedStoreError(
                    f"is not the log that {out} was made from: another record stands there",
                    file=str(path),
                    offset=last["log_offset"] - base,
                    advice="Archive it to another directory.",
                )
            return
    if files and last["log_offset"] >= files[-1][2]:
        raise MisuseError(
            f"the archive {out} ends at {manifest['to']}, this log at {files[-1][2]}: it is of "
            f"another store; archive to another directory"
        )


def _sync(path: Path) -> None:
    """Sync what Spark wrote, before the manifest names it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
