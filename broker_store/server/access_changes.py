"""Changes of users and policies, by the broker port and by the dashboard.

They are made one after another, and the file is written before a change acts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker_store.access.control import AccessControl
from broker_store.access.state import FILE_NAME, AccessState
from broker_store.engine.store_protocol import Store
from broker_store.errors import StoreError


class AccessChanges:
    """Makes changes of the users and policies of one broker. For coroutines of the loop."""

    def __init__(self, control: AccessControl, store: Store):
        self._control, self._store = control, store
        self._lock = asyncio.Lock()

    async def make(self, change: Callable[[AccessState], AccessState]) -> None:
        """Replace the state by `change(state)`, after its file was written. Raises what `change` raises,
        ChangeRefused and StoreError; then nothing is changed, but where the text of a StoreError says so."""
        async with self._lock:
            old = self._control.state
            state = change(old)
            if state is old:
                return
            self._control.check_change(state)
            await asyncio.to_thread(self._write, state)
            self._control.replace(state)
            if _lost_a_secret(old, state):
                await self._write_backup(state)

    async def _write_backup(self, state: AccessState) -> None:
        """Write the file again: its .bak, which is what it was before, has a secret that was taken away."""
        try:
            await asyncio.to_thread(self._write, state)
        except StoreError as error:
            raise StoreError(
                f"the change is made, but config/{FILE_NAME}.bak has the old password until the next change: "
                f"{error}"
            ) from error

    def _write(self, state: AccessState) -> None:
        """Write the file, in a thread: the text of the largest state takes some 100 ms."""
        self._store.write_config(FILE_NAME, state.text())


def _lost_a_secret(old: AccessState, new: AccessState) -> bool:
    """Return whether a secret of the old state is not that of its user any more."""
    return new.users is not old.users and any(
        name not in new.users or new.users[name].secret != user.secret for name, user in old.users.items()
    )
