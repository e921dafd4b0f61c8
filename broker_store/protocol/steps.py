"""Long work as a generator of steps, of which an event loop takes a few in each turn.

Between two steps the loop handles other requests. A step yields None, or a function that takes long: the loop
calls it in a thread and sends its result to the generator.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

Result = TypeVar("Result")


def finish(steps: Generator[object, Any, Result]) -> Result:
    """Take all steps now, and return the result of the generator. Functions that a step yields are called
    here."""
    answer = None
    while True:
        try:
            work = steps.send(answer)
        except StopIteration as end:
            result: Result = end.value
            return result
        answer = work() if callable(work) else None
