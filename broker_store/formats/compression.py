"""Bodies that their producer compressed, opened within bounds: a small compressed body must not become a
large answer (docs/durability.md S10)."""

from __future__ import annotations

import zlib

from broker_store.formats import record

MAX_INFLATED_BYTES = 1 << 20
MAX_INFLATION = 100


def inflate(body: bytes, sys_flag: int, limit: int = MAX_INFLATED_BYTES) -> bytes | None:
    """The body as its producer gave it, None when it cannot be had within the bounds."""
    if not sys_flag & record.SYS_COMPRESSED:
        return body
    if sys_flag & record.SYS_COMPRESSION_MASK not in (0, record.COMPRESSION_ZLIB):
        return None  # LZ4 and ZSTD: neither is in the standard library
    if limit <= 0:  # to zlib a limit of 0 is none at all
        return None
    bound = min(limit, max(len(body) * MAX_INFLATION, 4096))
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(body, bound)
    except zlib.error:
        return None
    return inflated if inflater.eof else None
