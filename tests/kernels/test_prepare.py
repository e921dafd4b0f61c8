"""`python -m broker_store.kernels`: what its processes share."""

import graphlib
import pkgutil

import pytest

from broker_store import kernels
from broker_store.kernels import _kept
from broker_store.kernels.__main__ import imports_by_module


def test_all_modules_are_compiled_and_each_after_those_that_it_imports():
    found = imports_by_module()
    assert found.keys() == {
        f"broker_store.kernels.{module.name}"
        for module in pkgutil.iter_modules(kernels.__path__)
        if not module.name.startswith("_")
    }
    assert found["broker_store.kernels.walk"] == {
        f"broker_store.kernels.{name}" for name in ("context", "memory", "record_head", "scan")
    }
    order = list(graphlib.TopologicalSorter(found).static_order())
    assert order.index("broker_store.kernels.dispatch") < order.index("broker_store.kernels.append")


@pytest.fixture
def checkouts(tmp_path, monkeypatch):
    """Make a checkout the present one by its name: it has compiled kernels, or none."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def enter(name, *files, digest="1"):
        monkeypatch.setattr(kernels, "CACHE_DIRECTORY", tmp_path / name / f"kernels-{digest}")
        monkeypatch.setattr(kernels, "__file__", str(tmp_path / name / "kernels" / "__init__.py"))
        for file in files:
            _kept._place().mkdir(parents=True, exist_ok=True)
            (_kept._place() / file).write_text(file)

    return enter


def taken():
    _kept.take()
    return sorted(path.name for path in _kept._place().iterdir()) if _kept._place().exists() else None


def test_what_one_checkout_compiled_another_of_the_same_sources_takes(checkouts):
    checkouts("first", "a.nbi", "a.nbc")
    _kept.keep()
    checkouts("second")
    assert taken() == ["a.nbc", "a.nbi"]
    checkouts("other sources", digest="2")
    assert taken() is None


def test_a_copy_that_is_not_whole_is_removed_and_kept_again(checkouts):
    checkouts("first", "a.nbi")
    _kept.keep()
    (_kept._kept() / _kept.CODE / "a.nbi").write_text("")
    checkouts("second")
    assert taken() is None and not _kept._kept().exists()
    checkouts("first")
    _kept.keep()
    checkouts("second")
    assert taken() == ["a.nbi"]


def test_only_the_last_versions_are_kept(checkouts):
    for number in range(_kept.MAX_KEPT + 2):
        checkouts("first", "a.nbi", digest=str(number))
        _kept.keep()
    assert len(list(_kept._kept().parent.iterdir())) == _kept.MAX_KEPT
    assert _kept._kept().exists()
