"""Compiled kernels in the user's cache, so that the next checkout of the same sources need not compile.

    kernels-<hash of the sources>/code/    what Numba wrote, without the directory that it names by the place
                                  sum      SHA-256 of it: a copy that is not whole is removed

Numba compares the content of a source file and its own version, not where the file is.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from numba.core.caching import UserProvidedCacheLocator

from broker_store import kernels

CODE, SUM = "code", "sum"
MAX_KEPT = 4  # versions of the kernels; the oldest are removed


def take() -> None:
    """Copy kept kernels to the directory from which this program loads them, if it has none."""
    kept = _kept()
    if kernels.are_compiled() or not (kept / SUM).is_file():
        return
    if not (kept / CODE).is_dir() or (kept / SUM).read_text() != _sum_of(kept / CODE):
        shutil.rmtree(kept)
        return
    shutil.copytree(kept / CODE, _place(), dirs_exist_ok=True)
    os.utime(kept)


def keep() -> None:
    """Copy the compiled kernels to the user's cache, unless they are there."""
    kept = _kept()
    if kept.exists():
        return
    made = kept.with_name(f".{kept.name}-{os.getpid()}")
    try:
        shutil.copytree(_place(), made / CODE)
        (made / SUM).write_text(_sum_of(made / CODE))
        made.rename(kept)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    all_kept = sorted(kept.parent.glob("kernels-*"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in all_kept[MAX_KEPT:]:
        shutil.rmtree(old, ignore_errors=True)


def _kept() -> Path:
    return kernels.user_cache() / "kept" / kernels.CACHE_DIRECTORY.name


def _place() -> Path:
    """Return the directory that Numba uses for this package."""
    return kernels.CACHE_DIRECTORY / UserProvidedCacheLocator.get_suitable_cache_subpath(kernels.__file__)


def _sum_of(directory: Path) -> str:
    sums = hashlib.sha256()
    for file in sorted(directory.iterdir()):
        sums.update(file.name.encode() + b"\0" + file.read_bytes())
    return sums.hexdigest()
