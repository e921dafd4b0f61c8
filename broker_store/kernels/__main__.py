"""`python -m broker_store.kernels`: compile every kernel into the cache, so that no start has to.

A module compiles its kernels when it is imported. Processes share the modules: one takes a module when all
that it imports are in the cache.
"""

from __future__ import annotations

import ast
import graphlib
import importlib
import os
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path

from broker_store import kernels
from broker_store.kernels import _kept

MAX_PROCESSES = 4
PACKAGE = kernels.__name__


def imports_by_module() -> dict[str, set[str]]:
    """Return for each module of this package the modules of this package that it imports, by full names."""
    files = {f"{PACKAGE}.{file.stem}": file for file in Path(__file__).parent.glob("[!_]*.py")}
    found: dict[str, set[str]] = {}
    for name, file in files.items():
        imported: set[str] = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                imported |= {f"{node.module}", *(f"{node.module}.{one.name}" for one in node.names)}
        found[name] = imported & files.keys()
    return found


def compile_module(name: str) -> None:
    importlib.import_module(name)


def compile_all(processes: int) -> None:
    """Compile the kernels of all modules by so many processes."""
    order = graphlib.TopologicalSorter(imports_by_module())
    order.prepare()
    running: dict[Future[None], str] = {}
    with ProcessPoolExecutor(processes) as pool:
        while order.is_active():
            running |= {pool.submit(compile_module, name): name for name in order.get_ready()}
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                done.result()
                order.done(running.pop(done))


def _for_other_checkouts(step: Callable[[], None]) -> None:
    """Take or keep a copy. A user's cache that cannot be used only costs time."""
    try:
        step()
    except OSError as error:
        print(f"no compiled kernels are shared with other checkouts: {error}")


def prepare() -> None:
    """Compile all kernels that are not compiled yet, and say how long it took."""
    started = time.perf_counter()
    _for_other_checkouts(_kept.take)
    compile_all(min(MAX_PROCESSES, len(os.sched_getaffinity(0))))
    kernels.note_compiled()
    _for_other_checkouts(_kept.keep)
    print(f"kernels ready in {time.perf_counter() - started:.1f} s ({kernels.CACHE_DIRECTORY})")


if __name__ == "__main__":
    prepare()
