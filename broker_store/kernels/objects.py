"""Doors: compiled functions that Python calls with its own objects, and that give objects back.

    Python ──(bound to an address by ctypes, once)──► PyCFunction ──► door ──► kernels, which know
    integers only

A kernel called through Numba's dispatcher costs 0.1 to 0.2 µs before it begins, and what it found has still
to be read back word by word, measured and made into objects, each by a call of its own. A short read or a key
lookup is over in that time. So the few that are asked so often have a door: it takes strings and ints by
CPython's C API (documented functions only, no layout of an object is assumed), calls the kernels, and makes
the answer. It runs with the interpreter lock held.

Every function of the C API here takes and gives addresses of objects as int64, 0 for failure with an
exception set. A door gives a new reference, or 0 after it let go of what it made.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from numba import cfunc, types

from broker_store.kernels.memory import inlined, load64

_WORD = types.int64
_FASTCALL = 0x80  # METH_FASTCALL: (self, address of the arguments, their count)


class _MethodDefinition(ctypes.Structure):
    """PyMethodDef"""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


_kept: list[tuple] = []  # what the functions are made of, for ever
_new_function = ctypes.pythonapi.PyCFunction_NewEx
_new_function.restype = ctypes.py_object
_new_function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


def door(function: Callable[[int, int, int], int]) -> Callable:
    """Compile `function(self, arguments, count)` and give the Python function that calls it with any
    arguments."""
    compiled = cfunc(_WORD(_WORD, _WORD, _WORD), cache=True)(function)
    definition = _MethodDefinition(function.__name__.encode(), compiled.address, _FASTCALL, None)
    _kept.append((definition, compiled))
    return _new_function(ctypes.addressof(definition), None, None)


def _api(name: str, *arguments, gives=_WORD):
    return types.ExternalFunction(name, gives(*arguments))


_as_int = _api("PyLong_AsLongLong", _WORD)
_as_utf8 = _api("PyUnicode_AsUTF8AndSize", _WORD, _WORD)
_error = _api("PyErr_Occurred")
wrong_call = _api("PyErr_BadArgument", gives=types.int32)  # sets TypeError, gives 0
new_int = _api("PyLong_FromLongLong", _WORD)
new_bytes = _api("PyBytes_FromStringAndSize", _WORD, _WORD)  # (0, size): the bytes are still to be written
bytes_data = _api("PyBytes_AsString", _WORD)
new_list = _api("PyList_New", _WORD)
_set_in_list = _api("PyList_SetItem", _WORD, _WORD, _WORD, gives=types.int32)
new_tuple = _api("PyTuple_New", _WORD)
# (a NamedTuple class, how many fields): to be filled as a tuple is
new_named = _api("PyType_GenericAlloc", _WORD, _WORD)
_set_in_tuple = _api("PyTuple_SetItem", _WORD, _WORD, _WORD, gives=types.int32)
let_go = _api("Py_DecRef", _WORD, gives=types.void)  # 0 is passed over


@inlined
def argument(arguments, number):
    """Address of an object; whoever called the door holds it."""
    return load64(arguments + 8 * number)


@inlined
def int_argument(arguments, number):
    """An int of 64 bits; for another object an exception is set, which `has_failed` sees."""
    return _as_int(load64(arguments + 8 * number))


@inlined
def has_failed():
    return _error() != 0


@inlined
def text_argument(arguments, number, length_at):
    """Address of a str's UTF-8, which the str keeps; its bytes go to the word at `length_at`. 0 and an
    exception when it has none."""
    return _as_utf8(load64(arguments + 8 * number), length_at)


@inlined
def put_into_list(target, number, item):
    """The list takes over the item, which may be 0 when it could not be made."""
    _set_in_list(target, number, item)


@inlined
def put_into_tuple(target, number, item):
    """The tuple takes over the item, which may be 0 when it could not be made."""
    _set_in_tuple(target, number, item)


@inlined
def answer(made):
    """What a door gives: `made`, unless something failed on the way (a part that is 0 has set an
    exception)."""
    if has_failed():
        let_go(made)
        return 0
    return made
