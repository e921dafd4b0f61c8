"""SIGBUS of a mapped store file: one sentence on stderr, then the end of the process with exit code 70.

A page of a map that the system can neither read nor write (the file was made shorter by another process, the
file system is full, read-only or failed) is reported to the thread that touches it by SIGBUS. No Python code
can run there: the interrupted instruction may lie in any kernel, in libc or in the interpreter. So the
handler is compiled, calls only write(2), _exit(2), raise(3) and sigaction(2), and reads only TABLE, which is
allocated before:

    header  | 0 rows in use | 8 length of the text after an offset | 256 that text | 512 the former `struct
            sigaction`
    row     | 0 first address | 8 address after the last | 16 length of the text | 24 the text, and room to
            complete it

`engine/disk/map_table.py` writes the table and installs the handler. It writes a row's addresses last and
clears them first, so the handler needs no lock: what it finds there is whole.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import cfunc, types
from numba.core import cgutils
from numba.extending import intrinsic

from broker_store.kernels.memory import copy_memory, inlined, load32, load64, store_u8

EXIT_CODE = 70  # EX_SOFTWARE of sysexits.h, which supervisors, `make run` and the tests expect
MAX_MAPS = 1 << 16  # Linux allows a process 65,530 maps
HEADER_BYTES, ROW_BYTES = 1024, 512
AFTER_LENGTH_AT, AFTER_AT, FORMER_AT = 8, 256, 512
START_AT, END_AT, LENGTH_AT, TEXT_AT = 0, 8, 16, 24
MAX_TEXT_BYTES = 256  # in a row; the digits of an offset and the text after them need the rest
_STDERR = 2
_SI_CODE_AT, _SI_ADDRESS_AT = 8, 16  # in `siginfo_t` of 64-bit Linux
_SYMBOL = "broker_store_map_table"

# Zeros that the system gives page by page when they are written: 32 MiB of addresses, half a KiB of memory a
# map.
TABLE = np.zeros(HEADER_BYTES + MAX_MAPS * ROW_BYTES, dtype=np.uint8)
# A signal handler gets no argument of ours, and compiled code in the cache contains no address: it finds the
# table by this symbol.
llvmlite.binding.add_symbol(_SYMBOL, TABLE.ctypes.data)

# Compiled code calls them with integers; the stubs of Numba know them as types only.
_write: Any = types.ExternalFunction("write", types.int64(types.int32, types.int64, types.int64))
_exit: Any = types.ExternalFunction("_exit", types.void(types.int32))
_raise: Any = types.ExternalFunction("raise", types.int32(types.int32))
_sigaction: Any = types.ExternalFunction("sigaction", types.int32(types.int32, types.int64, types.int64))


@intrinsic
def _table_address(typing_context):
    def codegen(context, builder, signature, arguments):
        word = ir.IntType(64)
        table = cgutils.add_global_variable(builder.module, ir.IntType(8), _SYMBOL)
        table.linkage = "external"
        return builder.ptrtoint(table, word)

    return types.int64(), codegen


@inlined
def _report(table, row, offset):
    """Complete the row's text with the offset's digits and what follows them, and write it in one piece."""
    text = row + TEXT_AT
    digits = 1
    rest = offset // 10
    while rest > 0:
        digits += 1
        rest //= 10
    end = text + load64(row + LENGTH_AT) + digits
    at = end
    for _ in range(digits):
        at -= 1
        store_u8(at, 48 + offset % 10)
        offset //= 10
    copy_memory(end, table + AFTER_AT, load64(table + AFTER_LENGTH_AT))
    _write(_STDERR, text, end + load64(table + AFTER_LENGTH_AT) - text)


@cfunc(types.void(types.int32, types.int64, types.int64), cache=True)
def handler(number, info, _):
    """void handler(int number, siginfo_t *info, void *)"""
    table = _table_address()
    address = load64(info + _SI_ADDRESS_AT)
    is_sent = load32(info + _SI_CODE_AT) <= 0  # by kill(2): there is no address
    if not is_sent:
        for row_number in range(load64(table)):
            row = table + HEADER_BYTES + row_number * ROW_BYTES
            if load64(row + START_AT) <= address < load64(row + END_AT):
                _report(table, row, address - load64(row + START_AT))
                _exit(EXIT_CODE)
    # Not a map of a store: restore the handler that was set before. It gets the signal when the instruction
    # is tried again.
    _sigaction(number, table + FORMER_AT, 0)
    if is_sent:
        _raise(number)
