"""The compiled versions of the hot loops; the only package that imports Numba.

Every kernel takes integers (addresses of memory that its caller holds) and returns an integer. State lies in
one int64 array, `context`; `kernels/context.py` names each of its words. A kernel returns a stop code
*before* it changes anything for a case that it does not handle, and Python then handles it. Python's own
objects are read and made only in `objects.py` (entry points) and `describe.py` (messages).

Numba's compile cache checks only the module of the outer function, so an edit of an inlined function in
another module would leave stale machine code in use (docs/durability.md section 7). The cache directory is
therefore named by the hash of every source file here and in formats/, whose tables define the offsets. It
lies beside the installed packages, or in `BROKER_KERNEL_CACHE`, or in the user's cache. A copy in the user's
cache is for other checkouts of the same sources (`_kept.py`).
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path


def user_cache() -> Path:
    """Return this program's directory in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "broker_store"


def _cache_directory() -> Path:
    here = Path(__file__).parent
    digest = hashlib.sha256()
    for source in sorted([*here.glob("*.py"), *here.with_name("formats").glob("*.py")]):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    name = f"kernels-{digest.hexdigest()[:16]}"
    wanted = os.environ.get("BROKER_KERNEL_CACHE")
    places = [Path(wanted)] if wanted else [Path(sys.prefix) / "var" / "broker_store", user_cache()]
    for place in places:
        try:
            (place / name).mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(place / name, os.W_OK):
            return place / name
    raise OSError(
        f"no writable place for compiled kernels among {', '.join(map(str, places))}; set BROKER_KERNEL_CACHE"
    )


CACHE_DIRECTORY = _cache_directory()
# Read once by Numba when it is first imported, which happens in the modules of this package only.
os.environ["NUMBA_CACHE_DIR"] = str(CACHE_DIRECTORY)

_MARK = "compiled"


def are_compiled() -> bool:
    """Return whether all kernels are in the cache. A processor of another kind still compiles its own."""
    return (CACHE_DIRECTORY / _MARK).exists()


def note_compiled() -> None:
    """Record that all kernels are in the cache."""
    (CACHE_DIRECTORY / _MARK).touch()
