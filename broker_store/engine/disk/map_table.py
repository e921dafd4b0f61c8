"""The addresses of this process that are maps of store files, for the handler of SIGBUS
(`kernels/map_fault.py`).

A map whose file can no longer be read or written ends the process: one sentence on stderr with file and
offset, exit code 70 (docs/decisions/0038-an-unusable-map-stops-the-process.md). `engine/disk/system.py`
enters each map when it is made and removes it before it ends. The first map of a process installs the
handler, so every process that maps a store has it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from pathlib import Path

from broker_store.kernels import map_fault

_SA_SIGINFO, _SA_ONSTACK = 4, 0x08000000
_BEFORE = b"store failed: "
_AT = b", byte "
_AFTER = (
    b": this mapped page can no longer be read or written. The file was made shorter, or its file "
    b"system is full, read-only"
    b" or failed. The process stops with exit code 70.\n"
)
_MAX_PATH_BYTES = map_fault.MAX_TEXT_BYTES - len(_BEFORE) - len(_AT)

_libc = ctypes.CDLL(None, use_errno=True)


class _Sigaction(ctypes.Structure):
    """`struct sigaction` of 64-bit Linux, in glibc and in musl."""

    _fields_ = [
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_uint64 * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    ]


class MapTable:
    """The rows of the handler's table; any thread. One instance per process: `MAPS`."""

    def __init__(self) -> None:
        self._words = map_fault.TABLE.view("int64")
        self._address = map_fault.TABLE.ctypes.data
        self._lock = threading.Lock()
        self._rows: dict[int, int] = {}  # by first address
        self._free: list[int] = []
        self._is_installed = False

    def enter(self, path: Path, address: int, size: int) -> None:
        """Note that [address, address + size) is a map of `path`."""
        with self._lock:
            if not self._is_installed:
                self._install()
            if self._free:
                row = self._free.pop()
            elif self._words[0] < map_fault.MAX_MAPS:
                row = int(self._words[0])
                self._words[0] += 1
            else:
                # No row is free, as the limit of maps was raised: a fault in this map ends the process by the
                # signal
                return
            self._rows[address] = row
            text = _BEFORE + os.fsencode(path)[-_MAX_PATH_BYTES:] + _AT
            at = map_fault.HEADER_BYTES + row * map_fault.ROW_BYTES
            ctypes.memmove(self._address + at + map_fault.TEXT_AT, text, len(text))
            self._words[(at + map_fault.LENGTH_AT) // 8] = len(text)
            self._words[(at + map_fault.START_AT) // 8] = address
            self._words[(at + map_fault.END_AT) // 8] = address + size

    def take_out(self, address: int) -> None:
        """Remove the map that begins at `address`, which is about to end."""
        with self._lock:
            row = self._rows.pop(address, None)
            if row is not None:
                at = map_fault.HEADER_BYTES + row * map_fault.ROW_BYTES
                self._words[(at + map_fault.END_AT) // 8] = 0
                self._words[(at + map_fault.START_AT) // 8] = 0
                self._free.append(row)

    def __len__(self) -> int:
        return len(self._rows)

    def _install(self) -> None:
        """Install the handler of SIGBUS. Faults outside our maps go to the previous handler (faulthandler, or
        none)."""
        ctypes.memmove(self._address + map_fault.AFTER_AT, _AFTER, len(_AFTER))
        self._words[map_fault.AFTER_LENGTH_AT // 8] = len(_AFTER)
        action = _Sigaction(handler=map_fault.handler.address, flags=_SA_SIGINFO | _SA_ONSTACK)
        if (
            _libc.sigaction(
                signal.SIGBUS, ctypes.byref(action), ctypes.c_void_p(self._address + map_fault.FORMER_AT)
            )
            != 0
        ):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._is_installed = True


MAPS = MapTable()
