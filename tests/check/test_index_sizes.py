"""The check finds unusual numbers of slots and entries of an index from where its entries lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_store.check.index_files import find_geometry
from broker_store.engine.disk.disk import Disk
from broker_store.formats import index_file
from broker_store.formats.index_file import IndexEntry, IndexGeometry, IndexHeader

UNUSUAL = IndexGeometry(500, 20_000)
USUAL = IndexGeometry(500, 2_000)


def _written(path: Path, geometry: IndexGeometry, key_hash: int) -> IndexHeader:
    """Write a file with one entry, of the record at 0; return its header."""
    header = IndexHeader(1_000, 1_000, 0, 0, 1, index_file.FIRST_ENTRY + 1)
    content = bytearray(geometry.file_bytes)
    content[: index_file.HEADER.size] = index_file.encode_header(header)
    at = geometry.slot_at(key_hash % geometry.slots)
    content[at : at + index_file.SLOT.size] = index_file.SLOT.pack(index_file.FIRST_ENTRY)
    at = geometry.entry_at(index_file.FIRST_ENTRY)
    content[at : at + index_file.ENTRY.size] = index_file.encode_entry(IndexEntry(key_hash, 0, 0, 0))
    path.write_bytes(content)
    return header


@pytest.mark.parametrize("key_hash", [499, 500, 1_000, 0x7FFFFFF4])
def test_zeros_of_slots_are_not_taken_for_the_entry_of_the_first_record(tmp_path, key_hash):
    """A hash in slot 0 made zeros before the entries look like an entry with the hash 0."""
    header = _written(tmp_path / "index", UNUSUAL, key_hash)
    with Disk().open_reader(tmp_path / "index") as reader:
        assert find_geometry(reader, UNUSUAL.file_bytes, header) == UNUSUAL


@pytest.mark.parametrize("key_hash", [0, 1, 500])
def test_a_hash_of_zero_is_found_in_a_file_of_the_usual_sizes(tmp_path, key_hash):
    header = _written(tmp_path / "index", USUAL, key_hash)
    with Disk().open_reader(tmp_path / "index") as reader:
        assert find_geometry(reader, USUAL.file_bytes, header) == USUAL


def test_a_hash_of_zero_alone_does_not_show_unusual_sizes(tmp_path):
    header = _written(tmp_path / "index", UNUSUAL, 0)
    with Disk().open_reader(tmp_path / "index") as reader:
        assert find_geometry(reader, UNUSUAL.file_bytes, header) is None
