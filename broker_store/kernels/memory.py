"""Loads and stores at integer addresses, big-endian as on disk or native as in the context array.

All values are int64. Nothing here checks an address: the caller of a kernel holds the memory, and the kernel
has bounded the offset before it comes here.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

_I64 = ir.IntType(64)
_FIRST_PRINTABLE, _LAST_PRINTABLE = 0x20, 0x7E  # of ASCII


def inlined(function):
    """Compile `function` for use inside kernels; never called from Python on a hot path."""
    return njit(inline="never", cache=False, nogil=True)(function)


def constant_bytes(text: str) -> np.ndarray:
    """Return the bytes of a text as an array that kernels may have among their constants."""
    return np.frombuffer(text.encode(), dtype=np.uint8).copy()


def _pointer(builder, address, bits):
    return builder.inttoptr(address, ir.IntType(bits).as_pointer())


def _loader(bits, swap, signed):
    @intrinsic
    def load(typing_context, address):
        def codegen(context, builder, signature, arguments):
            value = builder.load(_pointer(builder, arguments[0], bits), align=1)
            if swap and bits > 8:
                value = builder.bswap(value)
            if bits == 64:
                return value
            return builder.sext(value, _I64) if signed else builder.zext(value, _I64)

        return types.int64(types.int64), codegen

    return load


def _storer(bits, swap):
    @intrinsic
    def store(typing_context, address, value):
        def codegen(context, builder, signature, arguments):
            stored = arguments[1]
            if bits < 64:
                stored = builder.trunc(stored, ir.IntType(bits))
            if swap and bits > 8:
                stored = builder.bswap(stored)
            builder.store(stored, _pointer(builder, arguments[0], bits), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    return store


load_u8 = _loader(8, swap=False, signed=False)
load_be16 = _loader(16, swap=True, signed=True)
load_be32 = _loader(32, swap=True, signed=True)
load_be64 = _loader(64, swap=True, signed=True)
load32 = _loader(32, swap=False, signed=True)
load_u32 = _loader(32, swap=False, signed=False)
load64 = _loader(64, swap=False, signed=True)
store_u8 = _storer(8, swap=False)
store_be16 = _storer(16, swap=True)
store_be32 = _storer(32, swap=True)
store_be64 = _storer(64, swap=True)
store32 = _storer(32, swap=False)
store64 = _storer(64, swap=False)


@intrinsic
def as_double(typing_context, bits):
    """Return the double with these 64 bits."""

    def codegen(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), codegen


@intrinsic
def copy_memory(typing_context, target, source, length):
    """Copy `length` bytes as memcpy; the regions must not overlap."""

    def codegen(context, builder, signature, arguments):
        target, source, length = arguments
        cgutils.raw_memcpy(
            builder, _pointer(builder, target, 8), _pointer(builder, source, 8), length, 1, align=1
        )
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def prefetch_to_write(typing_context, address):
    """Load the cache line at `address` for writing, without waiting for it; an unmapped address does no
    harm."""

    def codegen(context, builder, signature, arguments):
        i32 = ir.IntType(32)
        pointer = _pointer(builder, arguments[0], 8)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, i32, i32, i32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [pointer, i32(1), i32(3), i32(1)])  # to write, to stay, data
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def remainder(typing_context, value, divisor):
    """Return `value` modulo `divisor`, both from 0 to 2**32 - 1 and the divisor not 0: takes less than half
    the time of 64 bits."""

    def codegen(context, builder, signature, arguments):
        value, divisor = (builder.trunc(argument, ir.IntType(32)) for argument in arguments)
        return builder.zext(builder.urem(value, divisor), _I64)

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def trailing_zeros(typing_context, word):
    """Return the number of zero bits below the lowest set bit of `word`, which must not be 0."""

    def codegen(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.IntType(1)(1))

    return types.int64(types.int64), codegen


@intrinsic
def get(typing_context, context_address, word):
    """Return word number `word` of the context array."""

    def codegen(context, builder, signature, arguments):
        base = _pointer(builder, arguments[0], 64)
        return builder.load(builder.gep(base, [arguments[1]]))

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def put(typing_context, context_address, word, value):
    """Set word number `word` of the context array."""

    def codegen(context, builder, signature, arguments):
        base = _pointer(builder, arguments[0], 64)
        builder.store(arguments[2], builder.gep(base, [arguments[1]]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


_LOW_BITS = 0x0101010101010101
_HIGH_BITS = -0x7F7F7F7F7F7F7F80  # 0x8080808080808080 as int64


@inlined
def load_few(address, length):
    """Return the bytes at `address`, fewer than eight, as the low bytes of a word with zeros above; read no
    other byte."""
    if length >= 4:
        return load_u32(address) | load_u32(address + length - 4) << 8 * (length - 4)
    if length == 0:
        return 0
    middle, last = length >> 1, length - 1
    return load_u8(address) | load_u8(address + middle) << 8 * middle | load_u8(address + last) << 8 * last


@inlined
def zero_bytes(word):
    """Return 0 when no byte of `word` is 0; else a word whose lowest set bit is the highest bit of the first
    zero byte."""
    return (word - _LOW_BITS) & ~word & _HIGH_BITS


@inlined
def has_zero_byte(address, length):
    """True if any of the bytes is 0; eight are tested at a time."""
    at = 0
    while at + 8 <= length:
        if zero_bytes(load64(address + at)):
            return True
        at += 8
    left = length - at
    return left > 0 and zero_bytes(load_few(address + at, left) | -1 << 8 * left) != 0


@inlined
def find_byte(address, end, wanted):
    """Return the address of the first byte `wanted`, which must not be 0; `end` when there is none."""
    pattern = wanted * _LOW_BITS
    at = address
    while at + 8 <= end:
        found = zero_bytes(load64(at) ^ pattern)
        if found:
            return at + (trailing_zeros(found) >> 3)
        at += 8
    found = zero_bytes(load_few(at, end - at) ^ pattern)
    return at + (trailing_zeros(found) >> 3) if found else end


@inlined
def same_bytes(left, right, length):
    at = 0
    while at + 8 <= length:
        if load64(left + at) != load64(right + at):
            return False
        at += 8
    return load_few(left + at, length - at) == load_few(right + at, length - at)


@inlined
def write_decimal(to, value):
    """Write a number of 0 or more as text; return the position after it."""
    digits = 1
    above = value // 10
    while above > 0:
        digits += 1
        above //= 10
    for place in range(digits):
        store_u8(to + digits - 1 - place, 48 + value % 10)
        value //= 10
    return to + digits


@inlined
def is_printable(at, end):
    """Return whether all bytes are printable ASCII."""
    while at < end:
        byte = load_u8(at)
        if byte < _FIRST_PRINTABLE or byte > _LAST_PRINTABLE:
            return False
        at += 1
    return True
