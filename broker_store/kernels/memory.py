"""Loads and stores at integer addresses, big-endian as on disk or native as in the context array.

All values are int64. Nothing here checks an address: the caller of a kernel holds the memory, and the kernel has
bounded the offset before it comes here.
"""

from __future__ import annotations

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

_I8 = ir.IntType(8)
_I64 = ir.IntType(64)


def inlined(function):
    """Compile `function` for use inside kernels; never called from Python on a hot path."""
    return njit(inline="never", cache=False, nogil=True)(function)


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
load64 = _loader(64, swap=False, signed=True)
store_u8 = _storer(8, swap=False)
store_be16 = _storer(16, swap=True)
store_be32 = _storer(32, swap=True)
store_be64 = _storer(64, swap=True)
store64 = _storer(64, swap=False)


@intrinsic
def copy_memory(typing_context, target, source, length):
    """memcpy; the regions do not overlap."""

    def codegen(context, builder, signature, arguments):
        target, source, length = arguments
        cgutils.raw_memcpy(builder, _pointer(builder, target, 8), _pointer(builder, source, 8), length, 1, align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def get(typing_context, context_address, word):
    """Word number `word` of the context array."""

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
def has_zero_byte(address, length):
    """Whether any of the bytes is 0; eight at a time."""
    at = 0
    while at + 8 <= length:
        word = load64(address + at)
        if (word - _LOW_BITS) & ~word & _HIGH_BITS:
            return True
        at += 8
    while at < length:
        if load_u8(address + at) == 0:
            return True
        at += 1
    return False


@inlined
def find_byte(address, end, wanted):
    """Address of the first byte `wanted`, `end` when there is none; eight bytes at a time."""
    pattern = wanted * _LOW_BITS
    at = address
    while at + 8 <= end:
        word = load64(at) ^ pattern
        if (word - _LOW_BITS) & ~word & _HIGH_BITS:
            break
        at += 8
    while at < end:
        if load_u8(at) == wanted:
            return at
        at += 1
    return end


@inlined
def same_bytes(left, right, length):
    at = 0
    while at + 8 <= length:
        if load64(left + at) != load64(right + at):
            return False
        at += 8
    while at < length:
        if load_u8(left + at) != load_u8(right + at):
            return False
        at += 1
    return True
