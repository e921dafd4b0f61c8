"""The files of the commit log as the map of the store shows them."""

from __future__ import annotations


def log_files(cluster) -> list[dict]:
    """The commit log's files, each with `dispatched`: how many of its bytes stand in queues and index."""
    dispatched = cluster.store()["positions"]["dispatched"]
    return with_dispatched(cluster.store_files("commitlog"), dispatched)


def with_dispatched(files: list[dict], dispatched: int | None) -> list[dict]:
    return [
        file
        | {
            "dispatched": None
            if dispatched is None or file["wrote"] is None
            else min(max(dispatched - file["base"], 0), file["wrote"])
        }
        for file in files
    ]
