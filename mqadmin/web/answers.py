"""Answers of Django that are sent in pieces, so that a large one gives way on the broker's loop after each
piece (`broker_store/turns.py`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from broker_store.turns import in_turns

PIECE_BYTES = 256 << 10


def in_pieces(pieces: Sequence[bytes], media_type: str) -> HttpResponseBase:
    """Return the answer of these pieces, with their length in its header."""
    if len(pieces) == 1:
        return HttpResponse(pieces[0], content_type=media_type)
    return StreamingHttpResponse(
        _one_by_one(pieces), content_type=media_type, headers={"Content-Length": str(sum(map(len, pieces)))}
    )


def cut(body: bytes) -> list[bytes]:
    """Return `body` in pieces of at most PIECE_BYTES, at least one."""
    return [body[at : at + PIECE_BYTES] for at in range(0, max(1, len(body)), PIECE_BYTES)]


async def _one_by_one(pieces: Sequence[bytes]) -> AsyncIterator[bytes]:
    async for (piece,) in in_turns(pieces, 1):
        yield piece
