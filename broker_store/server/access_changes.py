"""Changes of users and policies, by the broker port and by the dashboard.

They are made one after another, and the file is written before a change acts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker_store.access.control import AccessControl
from broker_store.access.state import FILE_NAME, AccessState
from broker_store.engine.store_protocol import Store


class AccessChanges:
    """Makes changes of the users and policies of one broker. For coroutines of the loop."""

    def __init__(self, control: AccessControl, store: Store):
        self._control, self._store = control, store
        self._lock = asyncio.Lock()

    async def make(self, change: Callable[[AccessState], AccessState]) -> None:
        """Replace the state by `change(state)`, after its file was written. Raises what `change` raises, and
        StoreError; then nothing is changed."""
        async with self._lock:
            state = change(self._control.state)
            if state is not self._control.state:
                await asyncio.to_thread(self._write, state)
                self._control.replace(state)

    def _write(self, state: AccessState) -> None:
        """Write the file, in a thread: the text of the largest state takes some 100 ms."""
        self._store.write_config(FILE_NAME, state.text())
