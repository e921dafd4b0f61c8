"""Answers of Django that are sent in pieces, so that a large one leaves the broker's loop to others between two of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

PIECE_BYTES = 256 << 10


def in_pieces(pieces: Sequence[bytes], media_type: str) -> HttpResponseBase:
    """The answer of these pieces; its length is known before the first is sent."""
    if len(pieces) == 1:
        return HttpResponse(pieces[0], content_type=media_type)
    return StreamingHttpResponse(_in_turns(pieces), content_type=media_type, headers={"Content-Length": str(sum(map(len, pieces)))})


def cut(body: bytes) -> list[bytes]:
    """`body` in pieces of at most PIECE_BYTES, at least one."""
    return [body[at : at + PIECE_BYTES] for at in range(0, max(1, len(body)), PIECE_BYTES)]


async def _in_turns(pieces: Sequence[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
        await asyncio.sleep(0)
