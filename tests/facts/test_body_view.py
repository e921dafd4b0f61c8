"""What a page shows of a body: true to what was sent, and bounded whatever that was."""

from __future__ import annotations

import json
import random
import zlib

import pytest

from broker_store.facts import body_view
from broker_store.facts.body_view import (
    MAX_INDENTED_CHARACTERS,
    SHOWN_BYTES,
    indent,
    preview_of,
    text_of,
    view_of,
)
from broker_store.formats import record


def message(body: bytes, sys_flag: int = 0) -> record.StoredMessage:
    host = (b"\x7f\x00\x00\x01", 1)
    return record.StoredMessage(0, 0, 0, 0, 0, 0, 0, sys_flag, 0, host, 0, host, 0, 0, body, "topic", b"")


def compressed(body: bytes) -> record.StoredMessage:
    return message(zlib.compress(body, 9), record.SYS_COMPRESSED)


HOSTILE = {
    "lists in lists": b"[" * 900 + b"]" * 900,
    "many deep lists": b"[" + b",".join([b"[" * 900 + b"]" * 900] * 36) + b"]",
    "brackets": b"[" * 32_768 + b"]" * 32_768,
    "open brackets": b"[" * 65_536,
    "empty objects": b"[" + b"{}," * 21_000 + b"{}]",
    "numbers": b"[" + b"0," * 32_000 + b"0]",
    "a huge number": b"[" + b"9" * 65_000 + b"]",
    "a huge exponent": b"[1e" + b"9" * 60_000 + b"]",
    "quotes": b'["' + b'\\"' * 32_000 + b'"]',
    "open quote": b'["' + b"\\" * 65_000,
    "backslashes": b'["' + b"\\\\" * 32_000 + b'"]',
    "names": b"{" + b",".join(b'"%d":{}' % n for n in range(6_000)) + b"}",
    "blanks": b"[" + b" " * 65_000 + b"]",
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("make", [message, compressed])
def test_no_body_becomes_large(body, make):
    view = view_of(make(body))
    assert len(view.indented or "") <= MAX_INDENTED_CHARACTERS and len(view.text or "") <= SHOWN_BYTES
    assert view.indented_cut == (len(view.indented or "") == MAX_INDENTED_CHARACTERS)
    assert (
        max((len(line) - len(line.lstrip()) for line in (view.indented or "").splitlines()), default=0)
        <= 2 * body_view.MAX_INDENT
    )


def test_the_body_that_made_a_page_of_57_mb_is_shown_within_the_bound_and_says_that_it_is_cut():
    nested = b"[" * 900 + b"]" * 900
    body = b"[" + b",".join([nested] * 36) + b"]"
    assert 36 * len(json.dumps(json.loads(nested), indent=2)) > 50 << 20  # and each line of it further right
    view = view_of(message(body))
    assert view.size == view.shown == len(body) and view.indented_cut
    assert view.indented == indent(body.decode())[0]


def test_what_is_indented_reads_as_what_was_sent():
    rng = random.Random(4)

    def value(depth: int):
        kind = rng.randrange(6 if depth < 5 else 4)
        if kind == 4:
            return [value(depth + 1) for _ in range(rng.randrange(4))]
        if kind == 5:
            return {
                rng.choice(["a", 'q"', "[", "ü:,"]) + str(n): value(depth + 1)
                for n in range(rng.randrange(4))
            }
        return (
            rng.randrange(-5, 10**20),
            None,
            rng.random(),
            rng.choice(["", 'a"b\\', "]}", "\u2028", ": ,"]),
        )[kind]

    for _ in range(300):
        one = [value(0)]
        separators = rng.choice([(",", ":"), (", ", ": "), (" ,\n", "\t: ")])
        shown, cut = indent(json.dumps(one, separators=separators, ensure_ascii=rng.random() < 0.5))
        assert (json.loads(shown), cut) == (one, False)
        assert shown == json.dumps(one, indent=2, ensure_ascii=False) or not shown.isascii() or "\\u" in shown


def test_names_that_come_twice_and_long_numbers_stay_as_they_were_sent():
    shown, _ = indent('{"a":1.50,"a":' + "7" * 5_000 + "}")
    assert shown == '{\n  "a": 1.50,\n  "a": ' + "7" * 5_000 + "\n}"


@pytest.mark.parametrize(
    "text", ["", "plain", '"text"', "12", "[1", "{1}", "[1]]", '{"a":}', "nan", "[" * 3_000 + "]" * 3_000]
)
def test_what_is_no_object_or_list_is_not_indented(text):
    assert indent(text) == (None, False)


def test_a_long_text_is_cut_between_characters_and_its_size_is_known():
    body = "ü".encode() * SHOWN_BYTES
    view = view_of(message(b"x" + body))
    assert view.text == "x" + "ü" * (SHOWN_BYTES // 2 - 1) and view.indented is None
    assert (view.shown, view.size) == (SHOWN_BYTES, 1 + 2 * SHOWN_BYTES)


def test_what_is_no_text_is_none_also_at_its_end():
    assert text_of(b"\xff", 10) is None and text_of("ü".encode()[:1], 10) is None
    assert text_of("aü".encode(), 2) == "a"


def test_a_preview_inflates_no_more_than_it_shows(monkeypatch):
    assert preview_of(compressed(b"hello " * 200_000)) == ("hello " * 200_000)[: body_view.PREVIEW_CHARACTERS]
    broken = message(b"no zlib", record.SYS_COMPRESSED)
    assert preview_of(broken) == "no zlib"
    asked = []

    class Inflater:
        eof = False

        def decompress(self, data, most):
            asked.append((len(data), most))
            return b"x"

    monkeypatch.setattr(body_view.zlib, "decompressobj", Inflater)
    preview_of(message(bytes(4 << 20), record.SYS_COMPRESSED))
    assert asked == [(body_view.PREVIEW_INPUT_BYTES, body_view.PREVIEW_CHARACTERS * 4)]


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"plain", "plain"), ("täglich".encode(), "täglich"), (b"\xff\x00\x01", "ff 00 01"), (b"a\x00b", "61 00 62"), (b"", ""),
        (b"x" * 639 + "ü".encode(), "x" * 160), (b"x" * 700, "x" * 160), (b"text, then \xc3", "74 65 78 74 2c 20 74 68 65 6e 20 c3"),
        ("ü".encode() * 5_000, "ü" * 160),
    ],
)  # fmt: skip
def test_a_body_is_previewed_as_text_and_as_hex_when_it_is_none(body, shown):
    assert preview_of(message(body)) == shown
