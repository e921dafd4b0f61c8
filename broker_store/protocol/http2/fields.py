"""Header fields: decoded from HPACK blocks (RFC 7541), and encoded for answers.

This server announces a dynamic table of 0 bytes. A client that knows that begins its next block with a size
update to 0. From then on no block depends on another: each field is read by itself, and names and Huffman
texts that were read before are taken from a cache. Until then, and for clients that keep a table, the decoder
of the library `hpack` reads the blocks.

The fields of a usual request without a table are read by a kernel, `kernels/http2_fields.py`, which a server
gives to its connections. What it does not read, it leaves to the code here.

Answers use no dynamic table and no Huffman code.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from hpack import Decoder, HPACKError, OversizedHeaderListError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from broker_store.formats.http2_frame import ErrorCode
from broker_store.protocol.budget import Budget
from broker_store.protocol.http2.frames import Http2Error

# Of the decoded fields together, each counted with its name, value and 32 bytes (RFC 9113).
MAX_FIELDS_BYTES = 32 << 10
FIELD_OVERHEAD_BYTES = 32
# Of the blocks that the kernel does not read, what each has above FREE_BLOCK_BYTES. A byte of Huffman code
# takes some 0.2 us here, and a field, which may have one byte, some 2 us.
FREE_BLOCK_BYTES = 1 << 10
BYTES_OF_FIELD = 16
MAX_LONG_BYTES = 512 << 10
LONG_BYTES_PER_S = 128 << 10
MAX_CACHED = 512
MAX_CACHED_BYTES = 256

Fields = dict[str, str]
# (block without a dynamic table, STATIC_WORDS) -> the fields of a request, empty if they are not read here.
ReadFields = Callable[[bytes, list[str]], Fields]

_STATIC = [(name.decode(), value.decode()) for name, value in HeaderTable.STATIC_TABLE]
_STATIC_END = len(_STATIC) + 1
STATIC_WORDS = [word for field in _STATIC for word in field]
_SIZE_UPDATE = 0x20
_NO_TABLE = b"\x20"
# Names that this server asks for are all shorter. Other names may be longer, which is no error.
_MAX_NUMBER = 1 << 24
# Fields of HTTP/1 that make a request malformed (RFC 9113).
_OF_CONNECTIONS = frozenset(("connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade"))
_PSEUDO = frozenset((":method", ":scheme", ":path", ":authority"))
_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")


class FieldDecoder:
    """Decodes the header blocks of one connection, which must come in their order."""

    __slots__ = ("_full", "_names", "_texts", "_read_usual", "_long", "has_no_table")

    def __init__(self, now_s: float, read_usual: ReadFields | None = None) -> None:
        self._read_usual = read_usual
        self._long = Budget(MAX_LONG_BYTES, LONG_BYTES_PER_S, now_s)
        self._full: Decoder | None = Decoder(MAX_FIELDS_BYTES)
        self._names: dict[bytes, str] = {}
        self._texts: dict[bytes, str] = {}
        # The peer has acknowledged that no table is allowed.
        self.has_no_table = False

    @property
    def is_usual(self) -> bool:
        """Return whether blocks use no dynamic table: a short block then has few bytes of fields."""
        return self._full is None

    def request(self, block: bytes, now_s: float) -> Fields | str:
        """Return the fields of a request as `check_request`. Raises Http2Error as `decode`, and for more long
        blocks than a peer has."""
        if self._full is None and self._read_usual is not None:
            fields = self._read_usual(block, STATIC_WORDS)
            if fields:
                return fields
        pairs = self.decode(block)
        size = len(block) + BYTES_OF_FIELD * len(pairs)
        if size > FREE_BLOCK_BYTES and not self._long.spend(size - FREE_BLOCK_BYTES, now_s):
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "too many long header blocks")
        return check_request(pairs)

    def decode(self, block: bytes) -> list[tuple[str, str]]:
        """Return the fields of a block. Raises Http2Error for the connection: no later block can be read."""
        try:
            if block[:1] == _NO_TABLE and block[1:2] and block[1] & 0xE0 != _SIZE_UPDATE:
                self._full = None
                return self._read(block, 1)
            if self._full is None and block and block[0] & 0xE0 == _SIZE_UPDATE:
                if self.has_no_table:
                    raise Http2Error(ErrorCode.COMPRESSION_ERROR, "a table size above the announced 0")
                self._full = Decoder(MAX_FIELDS_BYTES)
            if self._full is None:
                return self._read(block, 0)
            return [
                (name.decode("latin-1"), value.decode("latin-1"))
                for name, value in self._full.decode(block, raw=True)
            ]
        except OversizedHeaderListError:
            raise Http2Error(
                ErrorCode.ENHANCE_YOUR_CALM, f"header fields of more than {MAX_FIELDS_BYTES} bytes"
            ) from None
        except (HPACKError, IndexError, UnicodeDecodeError) as error:
            raise Http2Error(
                ErrorCode.COMPRESSION_ERROR, f"a header block that cannot be read: {error!s:.120}"
            ) from None

    def _read(self, block: bytes, at: int) -> list[tuple[str, str]]:
        """Return the fields of a block that uses no dynamic table, from position `at` on."""
        found: list[tuple[str, str]] = []
        end = len(block)
        size = 0
        # Short numbers and texts without Huffman code are read here: a call to a function costs more than
        # they do, and each request has some 15 fields.
        while at < end:
            first = block[at]
            if first & 0x80:
                index, at = (first & 0x7F, at + 1) if first != 0xFF else _number(block, at, 0x7F)
                field = _static(index)
            else:
                if first & 0x40:
                    mask = 0x3F
                elif first & _SIZE_UPDATE:
                    raise Http2Error(ErrorCode.COMPRESSION_ERROR, "a table size within a header block")
                else:
                    mask = 0x0F
                index, at = (first & mask, at + 1) if first & mask != mask else _number(block, at, mask)
                if index:
                    name = _static(index)[0]
                elif (start := at + 1) + (length := block[at]) <= end and length < 0x7F:
                    at = start + length
                    name = block[start:at].decode("latin-1")
                else:
                    name, at = self._text(block, at, self._names)
                if (start := at + 1) + (length := block[at]) <= end and length < 0x7F:
                    at = start + length
                    value = block[start:at].decode("latin-1")
                else:
                    value, at = self._text(block, at, self._texts)
                field = (name, value)
            found.append(field)
            size += len(field[0]) + len(field[1]) + FIELD_OVERHEAD_BYTES
            if size > MAX_FIELDS_BYTES:
                raise Http2Error(
                    ErrorCode.ENHANCE_YOUR_CALM, f"header fields of {size} bytes, most is {MAX_FIELDS_BYTES}"
                )
        return found

    def _text(self, block: bytes, at: int, cache: dict[bytes, str]) -> tuple[str, int]:
        """Return the text at `at`, and the position after it."""
        huffman = block[at] & 0x80
        start = at + 1
        length = block[at] & 0x7F
        if length == 0x7F:
            length, start = _number(block, at, 0x7F)
        end = start + length
        if end > len(block):
            raise Http2Error(ErrorCode.COMPRESSION_ERROR, "a text that is longer than its header block")
        raw = block[start:end]
        if not huffman:
            return raw.decode("latin-1"), end
        text = cache.get(raw)
        if text is None:
            text = decode_huffman(raw).decode("latin-1")
            if length <= MAX_CACHED_BYTES:
                if len(cache) >= MAX_CACHED:
                    cache.clear()
                cache[raw] = text
        return text, end


def _static(index: int) -> tuple[str, str]:
    if not 0 < index < _STATIC_END:
        raise Http2Error(ErrorCode.COMPRESSION_ERROR, f"field {index} of a table that has {_STATIC_END - 1}")
    return _STATIC[index - 1]


def _number(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """Return the number at `at` whose first byte has the bits of `mask`, and the position after it."""
    value = block[at] & mask
    at += 1
    if value != mask:
        return value, at
    shift = 0
    while True:
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if value > _MAX_NUMBER or shift > 28:
            raise Http2Error(ErrorCode.COMPRESSION_ERROR, "a number that is too large in a header block")
        if not byte & 0x80:
            return value, at
        shift += 7


def check_request(pairs: list[tuple[str, str]]) -> Fields | str:
    """Return the fields of a request, repeated ones joined by a comma, or why the request is malformed
    (RFC 9113)."""
    fields: Fields = {}
    pseudo = True
    for name, value in pairs:
        if name[:1] == ":":
            if not pseudo or name in fields or name not in _PSEUDO:
                return "a pseudo-header that is unknown, repeated or not at the beginning"
            fields[name] = value
            continue
        pseudo = False
        if name in fields:
            value = f"{fields[name]},{value}"
        elif not _is_allowed(name):
            return "a field name that is not allowed"
        if not value.isprintable() and ("\0" in value or "\r" in value or "\n" in value):
            return "a field value with NUL, CR or LF"
        fields[name] = value
    if not (fields.get(":method") and fields.get(":scheme") and fields.get(":path")):
        return "a request without method, scheme or path"
    return fields


def fields_size(fields: Fields) -> int:
    """Return the size of fields, counted as in MAX_FIELDS_BYTES."""
    return sum(map(len, fields)) + sum(map(len, fields.values())) + FIELD_OVERHEAD_BYTES * len(fields)


@lru_cache(1024)
def _is_allowed(name: str) -> bool:
    return bool(name) and _TOKEN.issuperset(name) and name not in _OF_CONNECTIONS


def _encoded_text(text: str) -> bytes:
    raw = text.encode("latin-1")
    return _encoded_number(len(raw), 0x7F, 0) + raw


def _encoded_number(value: int, mask: int, flags: int) -> bytes:
    if value < mask:
        return bytes((flags | value,))
    encoded = bytearray((flags | mask,))
    value -= mask
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


_PAIR_INDEX = {pair: index for index, pair in reversed(list(enumerate(_STATIC, 1)))}
_NAME_INDEX = {name: index for index, (name, _) in reversed(list(enumerate(_STATIC, 1)))}


def encode_fields(pairs: list[tuple[str, str]]) -> bytes:
    """Return a block that no other block depends on."""
    out = bytearray()
    for name, value in pairs:
        if index := _PAIR_INDEX.get((name, value)):
            out += _encoded_number(index, 0x7F, 0x80)
        elif index := _NAME_INDEX.get(name):
            out += _encoded_number(index, 0x0F, 0) + _encoded_text(value)
        else:
            out += b"\0" + _encoded_text(name) + _encoded_text(value)
    return bytes(out)
