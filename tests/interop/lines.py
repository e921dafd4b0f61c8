"""What the lines of the client programs say, and what must hold of them."""

import time


def names(program, *words: str) -> list[str]:
    """Topic and group names of one test and client version, not used before on a broker that lives for a
    whole file."""
    return [f"{word}-{program.version.replace('.', '-')}-{time.time_ns() % 10**9}" for word in words]


def place(line: dict) -> tuple[str, int, int]:
    """Topic, queue and offset: where a message is."""
    return line["topic"], line["queue"], line["offset"]


def acknowledged(lines: list[dict]) -> list[dict]:
    """The lines of a `send` of which every message was stored."""
    assert not [line for line in lines if "error" in line], [line for line in lines if "error" in line][:3]
    assert {line["status"] for line in lines} == {"SEND_OK"}
    return lines


def assert_dense(lines: list[dict]) -> None:
    """Every queue's offsets are 0, 1, 2 ... and none is used twice."""
    offsets: dict[tuple, list[int]] = {}
    for line in lines:
        offsets.setdefault(place(line)[:2], []).append(line["offset"])
    for queue, found in offsets.items():
        assert sorted(found) == list(range(len(found))), queue
