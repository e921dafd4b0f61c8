"""What the store can do now: its state, and a flag with its cause for each problem.

    opening ──► recovering ──► running ◄──► read_only ──► closed
                    └────────► failed

While a blocking flag is set a running store is read_only, and puts are refused. A flag that is only a
notice blocks nothing. `sync_failed` and `dispatch_failed` stay until the process ends; the others are cleared
when their cause is gone.

Loop's thread; workers reach it through `wake`. Another thread may open and close the store: before `start`
and after the ports are closed, when nothing else runs.
"""

from __future__ import annotations

from collections.abc import Callable

from broker_store.engine.status.store_state import Flag
from broker_store.messages import PutStatus

# A broker refuses sends while one of these is set, before it puts them.
_REJECTING_FLAGS = ("slave", "page_cache_busy", "no_buffer")
_BLOCKING_FLAGS = ("closed", "slave", "sync_failed", "disk_full", "no_room", "dispatch_failed", "inspect")
# Puts have another status while one of these is set; the store stays running.
_REFUSING_FLAGS = {
    "slaves_missing": PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH,
    "page_cache_busy": PutStatus.OS_PAGE_CACHE_BUSY,
}
_OPEN = ("running", "read_only")


class StoreState:
    """`refuse(refusal, rejects_sends)` is called after any change of flags: `refusal` is why puts are refused
    (None while they are taken), `rejects_sends` the flag for which sends are rejected before they are put."""

    def __init__(self, clock: Callable[[], int], refuse: Callable[[PutStatus | None, str | None], None]):
        self._clock = clock
        self._refuse = refuse
        self._flags: dict[str, tuple[str, int]] = {}  # name -> cause, since ms
        self.value = "opening"

    @property
    def is_open(self) -> bool:
        """True if the store is running or read_only."""
        return self.value in _OPEN

    @property
    def is_writable(self) -> bool:
        """True if puts are taken now."""
        return self.value == "running" and not self._flags.keys() & _REFUSING_FLAGS.keys()

    @property
    def blocked_by(self) -> str | None:
        """The first flag for which puts are SERVICE_NOT_AVAILABLE; None without one."""
        return next((flag for flag in _BLOCKING_FLAGS if flag in self._flags), None)

    @property
    def has_failed(self) -> bool:
        """True if nothing may be written any more in this process."""
        return "sync_failed" in self._flags or "dispatch_failed" in self._flags

    def enter(self, value: str) -> None:
        """Change the state to one of those above."""
        self.value = value
        if value in _OPEN:
            self._update()

    def is_set(self, flag: str) -> bool:
        return flag in self._flags

    def set_flag(self, flag: str, cause: str) -> None:
        """Set a flag; the first cause stays."""
        if flag not in self._flags:
            self._flags[flag] = (cause, self._clock())
        self._update()

    def clear_flag(self, flag: str) -> None:
        if self._flags.pop(flag, None) is not None:
            self._update()

    def causes(self) -> dict[str, str]:
        """Return the cause of each flag that is set."""
        return {name: cause for name, (cause, _) in self._flags.items()}

    def facts(self) -> list[Flag]:
        """Each flag that is set."""
        return [Flag(name=name, cause=cause, since_ms=since) for name, (cause, since) in self._flags.items()]

    def _update(self) -> None:
        blocked = not self.is_open or self.blocked_by is not None
        refusal = next((status for flag, status in _REFUSING_FLAGS.items() if flag in self._flags), None)
        self._refuse(
            PutStatus.SERVICE_NOT_AVAILABLE if blocked else refusal,
            next((flag for flag in _REJECTING_FLAGS if flag in self._flags), None),
        )
        if self.is_open:
            self.value = "read_only" if blocked else "running"
