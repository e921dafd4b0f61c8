"""Records that waited in another topic and are appended to their real queue, in the place of messages."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from broker_store.kernels.append import append_waited


class WaitedRecords:
    """A group of waited records, for the append kernel. `times` and `room` are referenced here while the
    kernel uses their addresses."""

    def __init__(
        self,
        records: bytes,
        count: int,
        topic: int,
        times: np.ndarray | None,
        room: np.ndarray,
        forbidden: Collection[str],
    ):
        self._records, self._count, self._topic, self._times, self._room, self.forbidden = (
            records,
            count,
            topic,
            times,
            room,
            forbidden,
        )

    def __len__(self) -> int:
        return self._count

    def append(self, context: int, now_ms: int) -> int:
        times = 0 if self._times is None else self._times.ctypes.data
        return append_waited(
            context,
            self._records,
            len(self._records),
            self._count,
            now_ms,
            self._topic,
            times,
            self._room.ctypes.data,
        )
