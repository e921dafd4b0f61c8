"""The CRC kernel is zlib's CRC-32, whatever the length and wherever the bytes lie."""

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_store.kernels import crc


@pytest.mark.parametrize("shift", [0, 1, 3, 7, 8])
def test_every_length_around_the_folded_blocks_gives_zlibs_crc(shift):
    memory = np.frombuffer(np.random.default_rng(1).bytes(700), dtype=np.uint8).copy()
    for length in range(600):
        expected = zlib.crc32(memory[shift : shift + length].tobytes())
        assert crc.crc32(memory.ctypes.data + shift, length) == expected, length


@given(st.binary(max_size=5000))
def test_any_bytes_give_zlibs_crc(data):
    memory = np.frombuffer(data + b"\0", dtype=np.uint8)
    assert crc.crc32(memory.ctypes.data, len(data)) == zlib.crc32(data)


@given(st.binary(max_size=300))
def test_the_tables_that_serve_a_cpu_without_the_instruction_give_it_too(data):
    memory = np.frombuffer(data + b"\0", dtype=np.uint8)
    assert crc._by_tables(0xFFFFFFFF, memory.ctypes.data, len(data)) ^ 0xFFFFFFFF == zlib.crc32(data)
