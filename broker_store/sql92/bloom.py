"""The Bloom filter data of a consumer group, which Apache's broker requires in consumerFilter.json.

Apache's broker may set bits for each group in a unit of a queue, at positions that are a hash of group and
topic. This broker writes no such units. It computes the positions because Apache's broker drops the whole
file if they do not fit its settings; these are Apache's defaults (32 consumers, 20 % errors).
"""

from __future__ import annotations

BITS = 112  # 32 * log2(100 / 20) * log2(e), rounded up to whole bytes
HASHES = 3  # log2(100 / 20), rounded up

_WORD = (1 << 64) - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


def positions(key: str, *, bits: int = BITS, hashes: int = HASHES) -> list[int]:
    """Return the positions of a key's bits."""
    first = murmur3(key.encode("utf-8", "replace"))
    low, high = _int32(first), _int32(first >> 32)
    found = []
    for number in range(1, hashes + 1):
        combined = _int32(low + number * high)
        found.append((combined if combined >= 0 else ~combined) % bits)
    return found


def _int32(value: int) -> int:
    return ((value & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


def murmur3(data: bytes) -> int:
    """Return the first 64 bits of the MurmurHash3 x64 of 128 bits, with seed 0."""
    h1 = h2 = 0
    whole = len(data) & ~15
    for at in range(0, whole, 16):
        k1, k2 = _word(data[at : at + 8]), _word(data[at + 8 : at + 16])
        h1 ^= _rotated(k1 * _C1, 31) * _C2 & _WORD
        h1 = ((_rotated(h1, 27) + h2) * 5 + 0x52DCE729) & _WORD
        h2 ^= _rotated(k2 * _C2, 33) * _C1 & _WORD
        h2 = ((_rotated(h2, 31) + h1) * 5 + 0x38495AB5) & _WORD
    h2 ^= _rotated(_word(data[whole + 8 :]) * _C2, 33) * _C1 & _WORD
    h1 ^= _rotated(_word(data[whole : whole + 8]) * _C1, 31) * _C2 & _WORD
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = (h1 + h2) & _WORD
    h2 = (h2 + h1) & _WORD
    h1, h2 = _mixed(h1), _mixed(h2)
    return (h1 + h2) & _WORD


def _word(part: bytes) -> int:
    return int.from_bytes(part, "little")


def _rotated(value: int, bits: int) -> int:
    value &= _WORD
    return (value << bits | value >> (64 - bits)) & _WORD


def _mixed(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _WORD
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _WORD
    return value ^ value >> 33
