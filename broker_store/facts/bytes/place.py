"""Which bytes of a store are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from broker_store.errors import FieldError
from broker_store.formats import names

Kind: TypeAlias = Literal[
    "commitlog", "consumequeue", "index", "checkpoint", "timerlog", "timerwheel", "timercheck"
]
KINDS: tuple[Kind, ...] = get_args(Kind)
MAX_BYTES = 64 << 10  # of one request


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a store's files. `offset` is a position in the log, in a queue or in the timer log; in the
    other kinds it counts from the beginning of one file.

    For a queue `unit`, for an index file `slot` or `entry`, for the timer wheel `slot` may stand instead of
    `offset`. Without any of them the place is the beginning.
    """

    kind: Kind = "commitlog"
    offset: int | None = None
    topic: str = ""
    queue: int = 0
    unit: int | None = None
    name: str = ""
    slot: int | None = None
    entry: int | None = None
    length: int | None = None  # bytes

    def check(self) -> Place:
        """Return itself. Raises FieldError or NameError_ for what cannot be a place."""
        if self.kind not in KINDS:
            raise FieldError("kind", self.kind, "one of " + ", ".join(KINDS))
        for name in ("offset", "queue", "unit", "slot", "entry"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1 << 63:
                raise FieldError(name, value, "a number from 0 on")
        if self.length is not None and not 0 < self.length <= MAX_BYTES:
            raise FieldError("length", self.length, f"1 to {MAX_BYTES} bytes")
        if self.kind == "consumequeue":
            names.check_stored_topic(self.topic)
        return self
