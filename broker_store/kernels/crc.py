"""CRC-32 (zlib polynomial) of memory. Apache stores it AND 0x7FFFFFFF, which the callers apply.

The CPU's carry-less multiplication folds 64 bytes at a time (Gopal et al., "Fast CRC Computation for Generic
Polynomials Using PCLMULQDQ", Intel 2009), at 11 to 28 GB/s. The rest, and everything on a CPU without the
instruction, goes through tables eight bytes at a time. LLVM aborts the process when it compiles the
instruction on a CPU that lacks it, so that code exists only where the CPU has the feature.
"""

from __future__ import annotations

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from broker_store.kernels.memory import inlined, load64, load_u8

_POLYNOMIAL = 0xEDB88320
# Folding constants of the reflected polynomial: x^(512+64), x^512; x^(128+64), x^128; x^64; P and its Barrett
# inverse.
_FOLD_512 = (0x0154442BD4, 0x01C6E41596)
_FOLD_128 = (0x01751997D0, 0x00CCAA009E)
_FOLD_64 = (0x0163CD6124, 0)
_BARRETT = (0x01DB710641, 0x01F7011641)

HAS_CARRYLESS_MULTIPLY = bool(llvmlite.binding.get_host_cpu_features().get("pclmul"))


def _tables() -> np.ndarray:
    tables = np.zeros((8, 256), dtype=np.int64)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        tables[0, byte] = value
    for row in range(1, 8):
        before = tables[row - 1]
        tables[row] = (before >> 8) ^ tables[0][before & 0xFF]
    return tables


_TABLES = _tables()


@inlined
def _by_tables(crc, address, length):
    while length >= 8:
        word = load64(address)
        low = (word & 0xFFFFFFFF) ^ crc
        high = (word >> 32) & 0xFFFFFFFF
        crc = (
            _TABLES[7, low & 0xFF]
            ^ _TABLES[6, (low >> 8) & 0xFF]
            ^ _TABLES[5, (low >> 16) & 0xFF]
            ^ _TABLES[4, low >> 24]
            ^ _TABLES[3, high & 0xFF]
            ^ _TABLES[2, (high >> 8) & 0xFF]
            ^ _TABLES[1, (high >> 16) & 0xFF]
            ^ _TABLES[0, high >> 24]
        )
        address += 8
        length -= 8
    while length > 0:
        crc = (crc >> 8) ^ _TABLES[0, (crc ^ load_u8(address)) & 0xFF]
        address += 1
        length -= 1
    return crc


@intrinsic
def _by_folding(typing_context, crc, address, length):
    """Return the CRC state after `length` bytes, which is a multiple of 16 and at least 64."""

    def codegen(context, builder, signature, arguments):
        crc, address, length = arguments
        i64 = ir.IntType(64)
        lane = ir.VectorType(i64, 2)
        multiply_type = ir.FunctionType(lane, [lane, lane, ir.IntType(8)])
        multiply_intrinsic = builder.module.declare_intrinsic("llvm.x86.pclmulqdq", fnty=multiply_type)

        def pair(low, high):
            return ir.Constant(lane, [low, high])

        def multiply(left, right, selector):
            return builder.call(multiply_intrinsic, [left, right, ir.Constant(ir.IntType(8), selector)])

        def load(offset, base):
            pointer = builder.inttoptr(builder.add(base, ir.Constant(i64, offset)), lane.as_pointer())
            return builder.load(pointer, align=1)

        def fold(state, constant, following):
            low, high = multiply(state, constant, 0x00), multiply(state, constant, 0x11)
            return builder.xor(builder.xor(low, high), following)

        def shifted_right(value, octets):
            wide = ir.IntType(128)
            shifted = builder.lshr(builder.bitcast(value, wide), ir.Constant(wide, 8 * octets))
            return builder.bitcast(shifted, lane)

        start = builder.insert_element(pair(0, 0), crc, ir.Constant(ir.IntType(32), 0))
        states = [load(16 * part, address) for part in range(4)]
        states[0] = builder.xor(states[0], start)
        entry = builder.block
        wide_test = builder.append_basic_block("crc.wide.test")
        wide_body = builder.append_basic_block("crc.wide.body")
        narrow = builder.append_basic_block("crc.narrow")
        narrow_test = builder.append_basic_block("crc.narrow.test")
        narrow_body = builder.append_basic_block("crc.narrow.body")
        done = builder.append_basic_block("crc.done")
        first = builder.add(address, ir.Constant(i64, 64))
        left = builder.sub(length, ir.Constant(i64, 64))
        builder.branch(wide_test)

        builder.position_at_end(wide_test)
        place, rest = builder.phi(i64), builder.phi(i64)
        folded = [builder.phi(lane) for _ in range(4)]
        builder.cbranch(builder.icmp_signed(">=", rest, ir.Constant(i64, 64)), wide_body, narrow)

        builder.position_at_end(wide_body)
        following = [fold(folded[part], pair(*_FOLD_512), load(16 * part, place)) for part in range(4)]
        next_place = builder.add(place, ir.Constant(i64, 64))
        next_rest = builder.sub(rest, ir.Constant(i64, 64))
        builder.branch(wide_test)
        place.add_incoming(first, entry)
        place.add_incoming(next_place, wide_body)
        rest.add_incoming(left, entry)
        rest.add_incoming(next_rest, wide_body)
        for part in range(4):
            folded[part].add_incoming(states[part], entry)
            folded[part].add_incoming(following[part], wide_body)

        builder.position_at_end(narrow)
        state = folded[0]
        for part in range(1, 4):
            state = fold(state, pair(*_FOLD_128), folded[part])
        builder.branch(narrow_test)

        builder.position_at_end(narrow_test)
        at, remaining, current = builder.phi(i64), builder.phi(i64), builder.phi(lane)
        builder.cbranch(builder.icmp_signed(">=", remaining, ir.Constant(i64, 16)), narrow_body, done)

        builder.position_at_end(narrow_body)
        after = fold(current, pair(*_FOLD_128), load(0, at))
        next_at = builder.add(at, ir.Constant(i64, 16))
        next_remaining = builder.sub(remaining, ir.Constant(i64, 16))
        builder.branch(narrow_test)
        at.add_incoming(place, narrow)
        at.add_incoming(next_at, narrow_body)
        remaining.add_incoming(rest, narrow)
        remaining.add_incoming(next_remaining, narrow_body)
        current.add_incoming(state, narrow)
        current.add_incoming(after, narrow_body)

        builder.position_at_end(done)
        low_words = pair(0xFFFFFFFF, 0xFFFFFFFF)
        value = builder.xor(shifted_right(current, 8), multiply(current, pair(*_FOLD_128), 0x10))
        upper = shifted_right(value, 4)
        value = builder.xor(multiply(builder.and_(value, low_words), pair(*_FOLD_64), 0x00), upper)
        quotient = multiply(builder.and_(value, low_words), pair(*_BARRETT), 0x10)
        quotient = multiply(builder.and_(quotient, low_words), pair(*_BARRETT), 0x00)
        value = builder.xor(value, quotient)
        return builder.lshr(
            builder.extract_element(value, ir.Constant(ir.IntType(32), 0)), ir.Constant(i64, 32)
        )

    return types.int64(types.int64, types.int64, types.int64), codegen


if HAS_CARRYLESS_MULTIPLY:

    @inlined
    def crc32(address, length):
        """Return the CRC-32 of `length` bytes at `address`, without the AND."""
        crc = 0xFFFFFFFF
        if length >= 64:
            folded = length & ~15
            crc = _by_folding(crc, address, folded)
            address += folded
            length -= folded
        return _by_tables(crc, address, length) ^ 0xFFFFFFFF

else:

    @inlined
    def crc32(address, length):
        """Return the CRC-32 of `length` bytes at `address`, without the AND."""
        return _by_tables(0xFFFFFFFF, address, length) ^ 0xFFFFFFFF
