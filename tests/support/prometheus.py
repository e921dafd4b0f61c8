"""Prometheus and its promtool, which `make deps` takes out of Debian's package."""

import shutil
from pathlib import Path

import pytest

BUILD = Path(__file__).resolve().parents[2] / "build" / "rocketmq" / "prometheus"


def of_prometheus(name: str) -> str | None:
    """Return the path of a program of Prometheus; None where `make deps` found no package of it. Skips the
    test where `make deps` did not run."""
    if (BUILD / name).exists():
        return str(BUILD / name)
    found = shutil.which(name)
    if found is None and not (BUILD / "none").exists():
        pytest.skip(f"no {name} on this machine (make deps fetches it)")
    return found
