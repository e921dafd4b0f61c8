"""Entry points: compiled functions that Python calls with its own objects and that return objects.

    Python ──(bound to an address by ctypes, once)──► PyCFunction ──► entry point ──► kernels (integers only)

A call through Numba's dispatcher costs 0.1 to 0.2 µs before the kernel starts, and its results must be read
word by word and made into objects, with a call for each. A short read or a key lookup takes no longer than
that. So the few kernels that are called most often have an entry point. It reads strings and ints through
CPython's C API (documented functions only, no layout of an object is assumed), calls the kernels, and makes
the answer. It runs with the interpreter lock held.

Every function of the C API here takes and returns addresses of objects as int64, 0 for a failure with an
exception set. An entry point returns a new reference, or 0 after it has released what it made.
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


_kept: list[tuple] = []  # definitions and code of the functions, kept for the life of the process
_new_function = ctypes.pythonapi.PyCFunction_NewEx
_new_function.restype = ctypes.py_object
_new_function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


def entry_point(function: Callable[[int, int, int], int]) -> Callable:
    """Compile `function(self, arguments, count)` and return the Python function that calls it with any
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
wrong_call = _api("PyErr_BadArgument", gives=types.int32)  # sets TypeError, returns 0
new_int = _api("PyLong_FromLongLong", _WORD)
# (0, size): the bytes are to be written by the caller
new_bytes = _api("PyBytes_FromStringAndSize", _WORD, _WORD)
bytes_data = _api("PyBytes_AsString", _WORD)
bytes_size = _api("PyBytes_Size", _WORD)
bytearray_data = _api("PyByteArray_AsString", _WORD)
new_list = _api("PyList_New", _WORD)
_set_in_list = _api("PyList_SetItem", _WORD, _WORD, _WORD, gives=types.int32)
new_tuple = _api("PyTuple_New", _WORD)
# (a NamedTuple class, its number of fields): to be filled as a tuple is
new_named = _api("PyType_GenericAlloc", _WORD, _WORD)
_set_in_tuple = _api("PyTuple_SetItem", _WORD, _WORD, _WORD, gives=types.int32)
decref = _api("Py_DecRef", _WORD, gives=types.void)  # 0 is ignored
_from_latin1 = _api("PyUnicode_DecodeLatin1", _WORD, _WORD, _WORD)
new_dict = _api("PyDict_New")
clear_dict = _api("PyDict_Clear", _WORD, gives=types.void)
dict_size = _api("PyDict_Size", _WORD)
_set_in_dict = _api("PyDict_SetItem", _WORD, _WORD, _WORD, gives=types.int32)
# (a list, a number below its length): the caller of the entry point holds the item
list_item = _api("PyList_GetItem", _WORD, _WORD)
_is_in_set = _api("PySet_Contains", _WORD, _WORD, gives=types.int32)


@inlined
def argument(arguments, number):
    """Return the address of an argument, which the caller of the entry point holds."""
    return load64(arguments + 8 * number)


@inlined
def int_argument(arguments, number):
    """Return an int of 64 bits; for another object an exception is set, which `has_failed` reports."""
    return _as_int(load64(arguments + 8 * number))


@inlined
def has_failed():
    return _error() != 0


@inlined
def text_argument(arguments, number, length_at):
    """Return the address of a str's UTF-8, which the str holds, and write its length to the word at
    `length_at`; 0 and an exception when it has none."""
    return _as_utf8(load64(arguments + 8 * number), length_at)


@inlined
def put_into_list(target, number, item):
    """Set an item of a list, which takes over the reference; 0 (could not be made) is allowed."""
    _set_in_list(target, number, item)


@inlined
def put_into_tuple(target, number, item):
    """Set an item of a tuple, which takes over the reference; 0 (could not be made) is allowed."""
    _set_in_tuple(target, number, item)


@inlined
def new_text(address, length):
    """Return a str of Latin-1, of which ASCII is a part."""
    return _from_latin1(address, length, 0)


@inlined
def put_into_dict(target, key, value):
    """Set an item of a dict, which takes references of its own; 0 (could not be made) is allowed."""
    if key != 0 and value != 0:
        _set_in_dict(target, key, value)


@inlined
def is_in_set(target, item):
    """Return whether an item, 0 (could not be made) is allowed, is in a set."""
    return item != 0 and _is_in_set(target, item) == 1


@inlined
def answer(made):
    """Return `made` for an entry point, or 0 after releasing it when something failed before (a part that is
    0 has set an exception)."""
    if has_failed():
        decref(made)
        return 0
    return made
