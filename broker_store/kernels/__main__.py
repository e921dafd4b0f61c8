"""`python -m broker_store.kernels`: compile every kernel into the cache, so that no start has to."""

import time

started = time.perf_counter()

from broker_store.kernels import CACHE_DIRECTORY, append, compare, crc, dispatch, fields, index, layout, lookup, read, residency, scan, slots  # noqa: E402, F401

print(f"kernels ready in {time.perf_counter() - started:.1f} s ({CACHE_DIRECTORY})")
