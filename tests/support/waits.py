"""Waits for what other tasks, threads or processes do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LIMIT_S = 30  # on a machine that runs ten other things at the same time


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds; fail when it does not within LIMIT_S."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + LIMIT_S
    while not condition():
        assert loop.time() < end_s, f"the condition did not hold within {LIMIT_S} s"
        await asyncio.sleep(0.001)
