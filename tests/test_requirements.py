"""Nothing is installed in a version that was not tested: each package is pinned, also those that others bring
along."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
FILES = sorted(ROOT.glob("requirements*.txt"))


def pins(path: Path) -> dict[str, str]:
    """{name: version} of a file and of those that it includes; a line that pins nothing fails."""
    found: dict[str, str] = {}
    for line in path.read_text().splitlines():
        if line.startswith("-r "):
            found |= pins(path.parent / line[3:])
        elif line and not line.startswith("#"):
            wanted = Requirement(line)
            (pin,) = wanted.specifier
            assert (pin.operator, "*" in pin.version, wanted.url, wanted.extras) == (
                "==",
                False,
                None,
                set(),
            ), f"{path.name}: {line}"
            assert found.setdefault(_plain(wanted.name), pin.version) == pin.version, (
                f"{path.name}: {line} is another version elsewhere"
            )
    return found


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_package_has_one_version_also_those_that_others_bring_along(path):
    pinned = pins(path)
    for name in pinned:
        try:
            brought = metadata.requires(name) or ()
        except metadata.PackageNotFoundError:
            continue  # for another Python than this one, or a file that is not installed here
        for text in brought:
            wanted = Requirement(text)
            if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
                assert _plain(wanted.name) in pinned, (
                    f"{name} brings {wanted.name}, which {path.name} does not pin"
                )
                assert wanted.specifier.contains(pinned[_plain(wanted.name)]), f"{name} wants {text}"


def test_the_files_are_those_that_are_known():
    assert [path.name for path in FILES] == [
        "requirements-core.txt",
        "requirements-dev.txt",
        "requirements-docs.txt",
        "requirements-otlp.txt",
        "requirements.txt",
    ]
