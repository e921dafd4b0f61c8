"""`python -m broker_store.kernels`: compile every kernel into the cache, so that no start has to."""

import importlib
import pkgutil
import time

from broker_store import kernels

started = time.perf_counter()
for module in pkgutil.iter_modules(kernels.__path__):
    if module.name != "__main__":
        importlib.import_module(f"{kernels.__name__}.{module.name}")
print(f"kernels ready in {time.perf_counter() - started:.1f} s ({kernels.CACHE_DIRECTORY})")
