"""Header fields of an HTTP/2 request, from a block that uses no dynamic table (RFC 7541).

`protocol/http2/fields.py` reads every block, and says what is wrong with a malformed one. This kernel reads
the blocks of usual requests, and gives the same fields. It returns an empty dict for any other block, also
for each malformed one.

Of a text in Huffman code two bytes are read at a time, where their codes have at most 12 bits in all: those
of letters and digits have 5 to 8. Otherwise one byte is read. Of codes longer than 8 bits those of one length
follow one another, so that the code alone gives the place of its byte.
"""

from __future__ import annotations

import numpy as np
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

from broker_store.kernels.memory import inlined, load_be32, load_u8, store_u8
from broker_store.kernels.objects import (
    answer,
    argument,
    bytes_data,
    bytes_size,
    clear_dict,
    decref,
    dict_size,
    entry_point,
    has_failed,
    list_item,
    new_bytes,
    new_dict,
    new_text,
    put_into_dict,
    wrong_call,
)

STATIC_FIELDS = 61
_PSEUDO_END = 8  # the static fields before are pseudo-headers of requests, the next seven of answers
_REGULAR = 15
_TRANSFER_ENCODING = 57
# Bits of `index >> 1` of :path, :method and :scheme, in the static table at 4 and 5, 2 and 3, 6 and 7.
_TARGET = 1 << 2 | 1 << 1 | 1 << 3
# A block that is longer, or has more fields, is left to the plain reader, which counts their bytes: those of
# such a block are below MAX_FIELDS_BYTES. A code is at least 5 bits long, so that a text grows to 8/5.
_MAX_BLOCK_BYTES = 8 << 10
_MAX_FIELDS = 64
_MAX_TEXT_BYTES = 2 << 10
_MAX_CODE_BITS = 30
_PAIR_BITS = 12
_END_OF_TEXT = 256  # the symbol that no text may have

_TOKEN = np.zeros(256, dtype=np.uint8)
_TOKEN[list(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")] = 1


def _short_codes() -> np.ndarray:
    """Return for each 8 bits the symbol whose code they begin with, with the code's length in the bits from
    8 on; 0 if the code is longer."""
    table = np.zeros(256, dtype=np.int64)
    for symbol, (code, length) in enumerate(zip(REQUEST_CODES, REQUEST_CODES_LENGTH, strict=True)):
        if length <= 8:
            first = code << (8 - length)
            table[first : first + (1 << (8 - length))] = length << 8 | symbol
    return table


def _pairs_of_codes() -> np.ndarray:
    """Return for each _PAIR_BITS bits the two symbols whose codes they begin with: the first in the lowest 8
    bits, the second in the next, and the length of both codes from bit 16 on; 0 if the codes are longer."""
    table = np.zeros(1 << _PAIR_BITS, dtype=np.int64)
    for ahead in range(1 << _PAIR_BITS):
        first = _SHORT[ahead >> (_PAIR_BITS - 8)]
        if first:
            left = (ahead << (first >> 8)) & ((1 << _PAIR_BITS) - 1)
            second = _SHORT[left >> (_PAIR_BITS - 8)]
            length = (first >> 8) + (second >> 8)
            if second and length <= _PAIR_BITS:
                table[ahead] = length << 16 | (second & 0xFF) << 8 | first & 0xFF
    return table


def _long_codes() -> tuple[np.ndarray, np.ndarray]:
    """Return for each length of a code (first code, number of codes, place of the first symbol), and the
    symbols in the order of their codes."""
    rows = np.zeros((_MAX_CODE_BITS + 1, 3), dtype=np.int64)
    symbols = sorted(range(len(REQUEST_CODES)), key=lambda symbol: (REQUEST_CODES_LENGTH[symbol], symbol))
    for place, symbol in enumerate(symbols):
        row = rows[REQUEST_CODES_LENGTH[symbol]]
        if not row[1]:
            row[0], row[2] = REQUEST_CODES[symbol], place
        assert REQUEST_CODES[symbol] == row[0] + row[1]
        row[1] += 1
    return rows, np.array(symbols, dtype=np.int64)


_SHORT = _short_codes()
_PAIRS = _pairs_of_codes()
_LENGTHS, _SYMBOLS = _long_codes()


@inlined
def _decode_huffman(source, length, target):
    """Write the bytes of a text in Huffman code, and return their number; -1 if the code is malformed."""
    written = 0
    word = 0  # its lowest `bits` bits are not read yet
    bits = 0
    at = 0
    while True:
        if bits < _MAX_CODE_BITS and length - at >= 4:
            word = word << 32 | (load_be32(source + at) & 0xFFFFFFFF)
            bits += 32
            at += 4
        while bits < _MAX_CODE_BITS and at < length:
            word = word << 8 | load_u8(source + at)
            bits += 8
            at += 1
        while bits >= _PAIR_BITS:
            pair = _PAIRS[word >> (bits - _PAIR_BITS) & ((1 << _PAIR_BITS) - 1)]
            if pair == 0:
                break
            store_u8(target + written, pair & 0xFF)
            store_u8(target + written + 1, pair >> 8 & 0xFF)
            written += 2
            bits -= pair >> 16
        if bits < _MAX_CODE_BITS and at < length:
            continue
        if bits == 0:
            return written
        # Ones after the last bit, as padding is ones.
        padded = word & ((1 << bits) - 1)
        missing = _MAX_CODE_BITS - bits
        ahead = padded >> -missing if missing < 0 else padded << missing | ((1 << missing) - 1)
        entry = _SHORT[ahead >> (_MAX_CODE_BITS - 8)]
        size = entry >> 8
        symbol = entry & 0xFF
        if size == 0:
            size = 9
            while size <= _MAX_CODE_BITS:
                rank = (ahead >> (_MAX_CODE_BITS - size)) - _LENGTHS[size, 0]
                if 0 <= rank < _LENGTHS[size, 1]:
                    symbol = _SYMBOLS[_LENGTHS[size, 2] + rank]
                    break
                size += 1
            if size > _MAX_CODE_BITS:
                return -1
        if size > bits:
            # The rest is padding: fewer than 8 bits, all of them ones.
            return written if bits < 8 and padded == (1 << bits) - 1 else -1
        if symbol == _END_OF_TEXT:
            return -1
        store_u8(target + written, symbol)
        written += 1
        bits -= size


@inlined
def _is_of_connection(name, length):
    """Return whether a name may be one of those that make a request malformed: connection,
    proxy-connection, keep-alive, transfer-encoding, upgrade. `length` is not 0."""
    first = load_u8(name)
    return (
        (length == 10 and (first == 99 or first == 107))
        or (length == 16 and first == 112)
        or (length == 17 and first == 116)
        or (length == 7 and first == 117)
    )


@inlined
def _is_name(name, length):
    """Return whether a name of a regular field is allowed for certain."""
    if length == 0 or _is_of_connection(name, length):
        return False
    for number in range(length):
        if _TOKEN[load_u8(name + number)] == 0:
            return False
    return True


@inlined
def _is_value(value, length):
    """Return whether a value has no NUL, CR and LF."""
    for number in range(length):
        byte = load_u8(value + number)
        if byte == 0 or byte == 10 or byte == 13:
            return False
    return True


@inlined
def _text_at(at, end, room):
    """Return (address, length, position after it) of a text; a length of -1 if it is not read here. A text in
    Huffman code is written to `room`."""
    if at >= end:
        return 0, -1, 0
    coded = load_u8(at) & 0x80
    length = load_u8(at) & 0x7F
    at += 1
    if length == 0x7F:
        if at >= end:
            return 0, -1, 0
        more = load_u8(at)
        at += 1
        if more & 0x80:
            if at >= end or load_u8(at) & 0x80:
                return 0, -1, 0
            more = more & 0x7F | load_u8(at) << 7
            at += 1
        length += more
    if length > end - at or length > _MAX_TEXT_BYTES:
        return 0, -1, 0
    if coded:
        return room, _decode_huffman(at, length, room), at + length
    return at, length, at + length


@inlined
def _read_fields(at, end, static, fields, room):
    """Put the fields of a block into a dict; return whether all of it was read."""
    read = 0
    has_regular = False
    target = 0  # which of :method, :path and :scheme have a value
    while at < end:
        first = load_u8(at)
        at += 1
        is_whole = first & 0x80 != 0
        mask = 0x7F if is_whole else 0x3F if first & 0x40 else 0x0F
        index = first & mask
        if index == mask:
            if at >= end or load_u8(at) & 0x80:
                return False
            index += load_u8(at)
            at += 1
        if first & 0xE0 == 0x20:  # the size of a table
            return False
        if index > STATIC_FIELDS or index == _TRANSFER_ENCODING or _PSEUDO_END <= index < _REGULAR:
            return False
        if index == 0 and is_whole:
            return False
        if 0 < index < _PSEUDO_END:
            if has_regular:
                return False
        else:
            has_regular = True
        if index:
            name = list_item(static, 2 * index - 2)
        else:
            text, length, at = _text_at(at, end, room)
            if length <= 0 or not _is_name(text, length):
                return False
            name = new_text(text, length)
        is_read = True
        if is_whole:
            put_into_dict(fields, name, list_item(static, 2 * index - 1))
            length = 1
        else:
            text, length, at = _text_at(at, end, room)
            is_read = length >= 0 and _is_value(text, length)
            if is_read:
                value = new_text(text, length)
                put_into_dict(fields, name, value)
                decref(value)
            if index == 0:
                decref(name)
        read += 1
        if not is_read or read > _MAX_FIELDS:
            return False
        if length > 0:
            target |= 1 << (index >> 1)
    # A repeated field is not read here.
    return target & _TARGET == _TARGET and read == dict_size(fields)


@entry_point
def read_fields(self, arguments, count):
    """`read_fields(block, static)`: return the fields of a request as `check_request` gives them, an empty
    dict if they are not read here.

    `static` is a list with the names and values of the static table, one after another.
    """
    if count != 2:
        return wrong_call()
    block = argument(arguments, 0)
    data = bytes_data(block)
    if has_failed():
        return 0
    fields = new_dict()
    room = new_bytes(0, 2 * _MAX_TEXT_BYTES)
    if fields != 0 and room != 0:
        end = data + bytes_size(block)
        is_read = end - data <= _MAX_BLOCK_BYTES and _read_fields(
            data, end, argument(arguments, 1), fields, bytes_data(room)
        )
        if not is_read:
            clear_dict(fields)
    decref(room)
    return answer(fields)
