"""What a page shows of a body: its text, indented if it is JSON, within bounds for every input.

Indentation makes a large page of a small body: 64 KiB of nested brackets, each on an indented line of its
own, are 57 MB. So depth and output are bounded. The text is cut into its own tokens, which keeps numbers and
repeated names as they were sent.

Call it in a thread. Each call into compiled code is short (2 ms for the worst 64 KiB that `json.loads` got),
and the interpreter may run another thread between them.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass

from broker_store.formats import record
from broker_store.formats.compression import inflate
from broker_store.formats.record import StoredMessage

SHOWN_BYTES = 64 << 10  # of a body
MAX_INDENTED_CHARACTERS = 128 << 10
MAX_INDENT = 16  # levels; deeper ones are indented like the sixteenth
PREVIEW_CHARACTERS = 160
PREVIEW_INPUT_BYTES = 2 << 10  # of a compressed body, for a preview
SHOWN_PROPERTIES = 256
SHOWN_KEYS = 256

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{},:]|[^\s\[\]{},:"]++', re.DOTALL)


@dataclass(frozen=True, slots=True)
class BodyView:
    """A body as a page shows it."""

    size: int  # bytes as its producer sent them; as stored if it cannot be inflated
    shown: int  # of these bytes, in `text`
    text: str | None  # None: it is not UTF-8
    indented: str | None  # None: it is not JSON, or only its beginning is shown
    indented_cut: bool
    is_inflated: bool
    is_opaque: bool  # compressed in a way that is not supported, or too large when inflated


def view_of(message: StoredMessage) -> BodyView:
    """Return the body of a message as a page shows it. In a thread."""
    inflated = inflate(message.body, message.sys_flag)
    body = message.body if inflated is None else inflated
    text = text_of(body, SHOWN_BYTES)
    indented, cut = (None, False) if text is None or len(body) > SHOWN_BYTES else indent(text)
    return BodyView(
        size=len(body),
        shown=min(len(body), SHOWN_BYTES),
        text=text,
        indented=indented,
        indented_cut=cut,
        is_inflated=message.is_compressed and inflated is not None,
        is_opaque=inflated is None,
    )


def text_of(body: bytes, max_bytes: int) -> str | None:
    """Return the text of the first `max_bytes` bytes, None if they are not UTF-8. A character that the cut
    splits is left out."""
    head = body[:max_bytes]
    try:
        return head.decode()
    except UnicodeDecodeError as error:
        is_cut = len(head) < len(body) and error.reason == "unexpected end of data"
        return head[: error.start].decode() if is_cut else None


def indent(text: str) -> tuple[str | None, bool]:
    """Return JSON with a line for each value and whether it was cut at MAX_INDENTED_CHARACTERS; None for what
    is not an object or a list."""
    if text.lstrip()[:1] not in ("{", "["):
        return None, False
    try:
        # Only for its errors: converting digits to numbers takes long
        json.loads(text, parse_int=len, parse_float=len)
    except (ValueError, RecursionError):
        return None, False
    pieces: list[str] = []
    size, depth, before = 0, 0, ""
    for match in _TOKEN.finditer(text):
        token = match[0]
        depth -= token in "]}"
        if before == "" or token in ",:" or (token in "]}" and before in "[{"):
            piece = token
        elif before == ":":
            piece = f" {token}"
        else:
            piece = f"\n{'  ' * min(depth, MAX_INDENT)}{token}"
        size += len(piece)
        if size > MAX_INDENTED_CHARACTERS:
            pieces.append(piece[: MAX_INDENTED_CHARACTERS - size])
            return "".join(pieces), True
        pieces.append(piece)
        depth += token in "[{"
        before = token
    return "".join(pieces), False


def preview_of(message: StoredMessage) -> str:
    """Return the beginning of a body on one line: its text, or hex of what is not text."""
    head, is_whole = _beginning(message)
    text = text_of(head if is_whole else head + b"\0", len(head))
    return (
        head[: PREVIEW_CHARACTERS // 3].hex(" ")
        if text is None or "\0" in text
        else text[:PREVIEW_CHARACTERS]
    )


def _beginning(message: StoredMessage) -> tuple[bytes, bool]:
    """Return enough bytes of a body for a preview, and whether they are all. A compressed body is inflated
    only so far."""
    max_bytes = PREVIEW_CHARACTERS * 4
    is_zlib = message.is_compressed and message.sys_flag & record.SYS_COMPRESSION_MASK in (
        0,
        record.COMPRESSION_ZLIB,
    )
    if is_zlib:
        inflater = zlib.decompressobj()
        try:
            head = inflater.decompress(message.body[:PREVIEW_INPUT_BYTES], max_bytes)
        except zlib.error:
            return message.body[:max_bytes], len(message.body) <= max_bytes
        return head, inflater.eof
    return message.body[:max_bytes], len(message.body) <= max_bytes
