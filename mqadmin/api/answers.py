"""Answers with facts whose size depends on what clients stored."""

from __future__ import annotations

import asyncio

import orjson
from django.http.response import HttpResponseBase

from mqadmin.api import schemas
from mqadmin.web.answers import cut, in_pieces


async def facts_answer(value: object) -> HttpResponseBase:
    """Return the answer with facts as JSON, made in a thread and sent in pieces.

    Ninja would check the answer against its schema on the broker's loop. That takes over a second for the 64
    KiB of a log with small records.
    """
    body = await asyncio.to_thread(lambda: orjson.dumps(schemas.facts(value)))
    return in_pieces(cut(body), "application/json")
