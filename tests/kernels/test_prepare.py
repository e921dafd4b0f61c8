"""`python -m broker_store.kernels`: what its processes share."""

import graphlib
import pkgutil

from broker_store import kernels
from broker_store.kernels.__main__ import imports_by_module


def test_all_modules_are_compiled_and_each_after_those_that_it_imports():
    found = imports_by_module()
    assert found.keys() == {
        f"broker_store.kernels.{module.name}"
        for module in pkgutil.iter_modules(kernels.__path__)
        if module.name != "__main__"
    }
    assert found["broker_store.kernels.walk"] == {
        f"broker_store.kernels.{name}" for name in ("context", "memory", "record_head", "scan")
    }
    order = list(graphlib.TopologicalSorter(found).static_order())
    assert order.index("broker_store.kernels.dispatch") < order.index("broker_store.kernels.append")
