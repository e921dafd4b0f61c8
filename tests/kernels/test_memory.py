"""Loads, stores and searches at addresses, against struct and bytes."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit, types

from broker_store.kernels import memory

LOADS = [
    (memory.load_u8, "B", 1),
    (memory.load_be16, ">h", 2),
    (memory.load_be32, ">i", 4),
    (memory.load_be64, ">q", 8),
    (memory.load64, "=q", 8),
]
STORES = [
    (memory.store_u8, 1, "big"),
    (memory.store_be16, 2, "big"),
    (memory.store_be32, 4, "big"),
    (memory.store_be64, 8, "big"),
    (memory.store64, 8, "little"),
]


@pytest.mark.parametrize(("load", "layout", "size"), LOADS)
def test_a_load_is_structs_unpack_at_any_address(load, layout, size):
    compiled = njit(types.int64(types.int64))(lambda address: load(address))
    raw = np.random.default_rng(2).integers(0, 256, 64, dtype=np.uint8)
    for at in range(64 - size):
        assert compiled(raw.ctypes.data + at) == struct.unpack_from(layout, raw, at)[0]


@pytest.mark.parametrize(("store", "size", "order"), STORES)
def test_a_store_writes_its_bytes_and_no_other(store, size, order):
    @njit(types.void(types.int64, types.int64))
    def compiled(address, value):
        store(address, value)

    for at in (0, 1, 5, 8):
        for value in (0, 1, -1, 0x0102030405060708, -0x0102030405060708):
            raw = np.full(24, 0xEE, dtype=np.uint8)
            compiled(raw.ctypes.data + at, value)
            expected = bytearray(b"\xee" * 24)
            expected[at : at + size] = (value & (1 << 8 * size) - 1).to_bytes(size, order)
            assert raw.tobytes() == expected


def _held(data: bytes) -> np.ndarray:
    return np.frombuffer(data + b"\0" * 8, dtype=np.uint8)


@given(st.binary(max_size=40), st.integers(0, 8))
def test_a_zero_byte_is_found_wherever_it_is(data, start):
    start = min(start, len(data))
    held = _held(data)
    assert memory.has_zero_byte(held.ctypes.data + start, len(data) - start) == (0 in data[start:])


@given(
    st.lists(st.sampled_from((0, 1, 2, 3, 127, 128, 129, 255)), max_size=40).map(bytes),
    st.sampled_from((1, 2, 32)),
)
def test_the_first_of_a_byte_is_found_or_the_end(data, wanted):
    held = _held(data)
    found = memory.find_byte(held.ctypes.data, held.ctypes.data + len(data), wanted) - held.ctypes.data
    assert found == (data.index(wanted) if wanted in data else len(data))


@given(st.binary(max_size=40), st.data())
def test_bytes_are_the_same_or_differ_in_one(data, draw):
    left, right = _held(data), _held(data).copy()
    assert memory.same_bytes(left.ctypes.data, right.ctypes.data, len(data))
    if data:
        right[draw.draw(st.integers(0, len(data) - 1))] ^= 1
        assert not memory.same_bytes(left.ctypes.data, right.ctypes.data, len(data))


@given(st.binary(max_size=7), st.binary(min_size=8, max_size=8))
def test_few_bytes_are_loaded_without_those_behind_them(data, behind):
    held = np.frombuffer(data + behind, dtype=np.uint8)
    assert memory.load_few(held.ctypes.data, len(data)) == int.from_bytes(data, "little")


@given(st.integers(0, 2**32 - 1), st.integers(1, 2**32 - 1))
def test_a_remainder_of_unsigned_32_bit_numbers(value, divisor):
    assert _remainder(value, divisor) == value % divisor


@njit(types.int64(types.int64, types.int64))
def _remainder(value, divisor):
    return memory.remainder(value, divisor)
