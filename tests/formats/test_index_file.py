import pytest

from broker_store.formats import index_file, record
from broker_store.formats.index_file import IndexEntry, IndexGeometry, IndexHeader
from tests.support import stores


def test_the_default_geometry_has_the_size_apache_states():
    assert IndexGeometry(5_000_000, 20_000_000).file_bytes == 420_000_040
    assert IndexGeometry(1000, 4000).file_bytes == 84_040
    assert IndexGeometry(1000, 4000).entry_at(1) == 40 + 4000 + 20


def test_headers_and_entries_survive_the_way_there_and_back():
    header = IndexHeader(1, 2, 3, 4, 5, 6)
    assert index_file.decode_header(index_file.encode_header(header)) == header
    entry = IndexEntry(2**31 - 1, 2**62, 7, 8)
    assert index_file.decode_entry(b"\0" + index_file.encode_entry(entry), 1) == entry


def test_a_new_file_counts_from_one():
    assert index_file.decode_header(bytes(40)).count == 1


def test_the_hash_is_never_negative():
    assert index_file.key_hash("polygenelubricants") == 0
    assert index_file.key_hash(index_file.key_text("T", "key")) >= 0


def test_keys_are_indexed_in_apaches_order():
    assert index_file.texts_of("T", "U", "k1  k2", "tag") == ["T#U", "T#k1", "T#k2", "T#T#tag"]
    assert index_file.texts_of("T", None, None, "tag", with_tags=False) == []


@pytest.mark.parametrize(
    ("begin", "store", "seconds"), [(0, 99_000, 0), (1000, 3999, 2), (5000, 1000, 0), (1, 10**16, 2**31 - 1)]
)
def test_the_time_of_an_entry_is_whole_seconds_since_the_begin(begin, store, seconds):
    assert index_file.seconds_since(begin, store) == seconds


@pytest.mark.parametrize(
    ("name", "with_tags"), [("clean", True), ("broker-dir", True), ("golden-clean", False)]
)
def test_the_entries_of_a_real_file_are_those_of_its_messages(name, with_tags, tmp_path):
    root = stores.unpack(name, tmp_path)
    sizes = stores.SIZES[name]
    geometry = IndexGeometry(sizes.max_hash_slot_num, sizes.max_index_num)
    (path,) = (root / "index").iterdir()
    data = path.read_bytes()
    header = index_file.decode_header(data)
    number = index_file.FIRST_ENTRY
    for start, log in stores.log_bytes(root):
        at = 0
        while at + 8 <= len(log) and record.read_head(log, at).is_record:
            message = record.decode(log, at, log_offset=start + at)
            at += message.size
            if not message.is_indexed:
                continue
            for text in index_file.texts_of(
                message.topic, message.unique_key, message.properties.get("KEYS"), message.tags, with_tags
            ):
                entry = index_file.decode_entry(data, geometry.entry_at(number))
                assert entry[:3] == (
                    index_file.key_hash(text),
                    message.log_offset,
                    index_file.seconds_since(header.begin_timestamp, message.store_timestamp)
                    if number > 1
                    else 0,
                )
                number += 1
    assert number == header.count
