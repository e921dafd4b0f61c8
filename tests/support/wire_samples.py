"""Reads the wire samples of a real 5.3.3 broker in tests/golden/wire."""

import ast
import json
import re
from collections import namedtuple
from pathlib import Path

WIRE = Path(__file__).parent.parent / "golden" / "wire"

# `header` is the header's text as it was received; `body` may be only the start of `body_bytes` bytes.
Sample = namedtuple("Sample", "name header values body body_bytes")


def read_samples(path):
    name = header = None
    for line in path.read_text(encoding="utf-8").split("\n"):
        if line.startswith("## "):
            name = line[3:].strip()
        elif line.startswith("  H "):
            header = line[4:]
        elif match := re.match(r"  B (\d+) (b['\"].*)", line):
            yield Sample(name, header, json.loads(header), ast.literal_eval(match[2]), int(match[1]))


def all_samples():
    return [sample for path in sorted(WIRE.glob("wire-[123].txt")) for sample in read_samples(path)]


def sample(name):
    """The complete sample of that name."""
    found = next(item for item in all_samples() if item.name == name)
    assert len(found.body) == found.body_bytes, f"{name} was cut when it was recorded"
    return found


def live_samples():
    """(header text, body) of what a fake consumer was sent."""
    for line in (WIRE / "wire-live.txt").read_text(encoding="utf-8").split("\n"):
        if match := re.match(r"<< (\{.*\}) (b['\"].*)", line):
            yield match[1], ast.literal_eval(match[2])
