"""Long work cut into steps, as a generator, so that an event loop can take a few at a time.

Between two steps the loop handles what came meanwhile. A step yields None, or a function that takes long:
the loop calls it in a thread and sends what it returns into the generator.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

Result = TypeVar("Result")


def finish(steps: Generator[object, Any, Result]) -> Result:
    """Take all steps at once, and return what the generator returns. A function that a step yields is called
    here."""
    answer = None
    while True:
        try:
            work = steps.send(answer)
        except StopIteration as end:
            result: Result = end.value
            return result
        answer = work() if callable(work) else None
