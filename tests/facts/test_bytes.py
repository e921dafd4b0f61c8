"""The byte viewer: every field of every kind of file as a plain reader finds it, where pointers lead, and
what it says of damage."""

from __future__ import annotations

import pytest

from broker_store.errors import FieldError, NameError_, NotFoundError
from broker_store.facts.bytes.field import Field
from broker_store.facts.bytes.pieces import FileBytes
from broker_store.facts.bytes.place import MAX_BYTES, Place
from broker_store.facts.bytes.viewer import MAX_PIECES, Viewer
from broker_store.facts.directory import StoreDirectory
from broker_store.facts.pointers import (
    BytePointer,
    EntryPointer,
    Pointer,
    UnitPointer,
    WheelSlotPointer,
)
from broker_store.facts.store_facts import FileFacts
from broker_store.formats import properties
from broker_store.formats.index_file import IndexGeometry
from broker_store.messages import Message
from broker_store.units import fields_of
from tests.support import plain_bytes, stores
from tests.support.hand_store import Clock, opened

SMALL = IndexGeometry(16, 64)


def place_at(pointer: Pointer) -> Place:
    return Place(**fields_of(pointer))


def viewer_of(root, geometry) -> Viewer:
    return Viewer(StoreDirectory(root, geometry=geometry))


def golden(name: str, directory, **more) -> tuple:
    root, sizes = stores.unpack(name, directory, **more), stores.SIZES[name]
    return root, IndexGeometry(sizes.max_hash_slot_num, sizes.max_index_num)


def ours(directory) -> tuple:
    """A store of our own: files of every kind that roll, both versions of the record, hosts of both
    lengths."""
    root = directory / "store"
    with opened(root, Clock()) as store:
        for number in range(90):
            pairs = properties.encode(
                {"UNIQ_KEY": f"U{number}", "KEYS": f"a b{number}", "TAGS": "paid" if number % 3 else None}
            )
            host = (b"\xfe\x80" + bytes(14), 7) if number % 4 == 0 else (b"\x0a\x00\x00\x01", 7)
            store.appender.put(
                Message(
                    "orders" if number % 5 else "t" * 200,
                    number % 2,
                    b"x" * (number * 11 % 400),
                    pairs,
                    born_timestamp=5,
                    born_host=host,
                )
            )
    return root, SMALL


STORES = {"ours": ours} | {
    name: lambda directory, name=name: golden(name, directory)
    for name in ("golden-clean", "golden-crash", "crash")
}


@pytest.fixture(scope="module", params=STORES)
def store(request, tmp_path_factory):
    return STORES[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture
def own(tmp_path):
    return ours(tmp_path)


def seen(viewer: Viewer, size: int, base: int = 0, **place) -> set[tuple]:
    """(name, position, length, number) of every field that looks over a whole file show."""
    found, at = set(), base
    while at < base + size:
        stretch = viewer.read(Place(offset=at, length=min(MAX_BYTES, base + size - at), **place))
        found |= {
            (field.name, field.at, field.length, field.raw)
            for piece in stretch.pieces
            for field in piece.fields
        }
        at = stretch.at + stretch.length
    return found


def test_every_field_of_the_log_is_what_a_plain_reader_finds(store):
    root, geometry = store
    viewer = viewer_of(root, geometry)
    for base, data in stores.log_bytes(root)[:3]:
        plain = set(plain_bytes.log(data, base))
        end = max(at + length for _, at, length, _ in plain)
        assert seen(viewer, end - base, base) == plain


def test_every_unit_of_every_queue_is_what_a_plain_reader_finds(store):
    root, geometry = store
    directory = StoreDirectory(root, geometry=geometry)
    viewer, compared = Viewer(directory), 0
    for topic, queue_id in directory.queues():
        for base, size, path in directory.queue_files(topic, queue_id)[-2:]:
            plain = set(plain_bytes.queue(path.read_bytes(), base))
            assert seen(viewer, size, base, kind="consumequeue", topic=topic, queue=queue_id) == plain
            compared += len(plain)
    assert compared > 30


def test_every_slot_and_entry_of_the_index_is_what_a_plain_reader_finds(store):
    root, geometry = store
    if not (root / "index").is_dir():
        pytest.skip("the real broker left this store without an index")
    for path in sorted((root / "index").iterdir())[-2:]:
        assert seen(viewer_of(root, geometry), path.stat().st_size, kind="index", name=path.name) == set(
            plain_bytes.index(path.read_bytes(), geometry.slots)
        )


def test_the_checkpoint_is_what_a_plain_reader_finds(store):
    root, geometry = store
    assert seen(viewer_of(root, geometry), 4096, kind="checkpoint") == set(
        plain_bytes.checkpoint((root / "checkpoint").read_bytes())
    )


def test_the_files_of_timed_messages_are_what_a_plain_reader_finds(tmp_path):
    root, geometry = golden("golden-clean", tmp_path, timer=True)
    viewer = viewer_of(root, geometry)
    (path,) = (root / "timerlog").iterdir()
    with path.open("rb") as file:
        data = file.read(1 << 16)
    plain = plain_bytes.timer_log(data, 0)
    assert seen(viewer, 1 << 16, kind="timerlog") == set(plain) and plain
    assert seen(viewer, 4096, kind="timercheck") == set(
        plain_bytes.timercheck((root / "config" / "timercheck").read_bytes())
    )
    pointers = [
        field.pointer
        for piece in viewer.read(Place("timerlog")).pieces
        for field in piece.fields
        if field.pointer
    ]
    wheel = (root / "timerwheel").read_bytes()
    for pointer in pointers:
        stretch = viewer.read(place_at(pointer))
        if isinstance(pointer, WheelSlotPointer):
            at = pointer.slot * 32
            expected = {
                (name, at + place, length, value)
                for name, place, length, value in plain_bytes.timer_wheel(wheel[at : at + 32])
            }
            assert {
                (field.name, field.at, field.length, field.raw) for field in stretch.pieces[0].fields
            } == expected
            assert all(field.right is not False for field in stretch.pieces[0].fields)
    assert {pointer.kind for pointer in pointers} >= {"timerwheel", "commitlog"}


def test_the_pieces_cover_what_is_shown_without_gap_or_overlap(store):
    root, geometry = store
    viewer = viewer_of(root, geometry)
    for place in (
        Place(offset=1),
        Place(offset=101, length=5_000),
        Place("checkpoint", offset=7, length=2_000),
    ):
        stretch = viewer.read(place)
        assert (
            stretch.pieces[0].at <= stretch.at
            and sum(piece.length for piece in stretch.pieces) >= stretch.length
        )
        for piece, following in zip(stretch.pieces, stretch.pieces[1:], strict=False):
            assert following.at == piece.at + piece.length
        assert len(bytes.fromhex(stretch.hex)) == stretch.length


def test_a_loop_from_queue_to_log_to_index_ends_where_it_began(store):
    root, geometry = store
    directory = StoreDirectory(root, geometry=geometry)
    viewer, loops = Viewer(directory), 0
    for topic, queue_id in directory.queues()[:6]:
        first, end = FileFacts(directory).queue_span(topic, queue_id)
        for unit in range(first, min(end, first + 5)):
            piece = viewer.read(Place("consumequeue", topic=topic, queue=queue_id, unit=unit)).pieces[0]
            log_place = piece.fields[0].pointer
            stretch = viewer.read(place_at(log_place))
            back = next(field for field in stretch.pieces[0].fields if field.name == "queue_offset").pointer
            assert back == UnitPointer(topic=topic, queue=queue_id, unit=unit)
            for jump in stretch.jumps:
                if jump.title.startswith("Index entry") and isinstance(jump.pointer, EntryPointer):
                    entry = viewer.read(place_at(jump.pointer)).pieces[0]
                    fields = {field.name: field for field in entry.fields}
                    assert fields["log_offset"].pointer == log_place
                    slot = fields["key_hash"].pointer.slot
                    file = (root / "index" / jump.pointer.name).read_bytes()
                    assert jump.pointer.entry in plain_bytes.chain(file, geometry.slots, slot)
                    loops += 1
    assert loops or not (root / "index").is_dir()


def test_previous_and_next_record_walk_the_log_both_ways_over_the_ends_of_files(store):
    root, geometry = store
    viewer = viewer_of(root, geometry)
    places = [
        place
        for base, data in stores.log_bytes(root)[:2]
        for place, _ in plain_bytes.record_places(data, base)
    ]
    for at, following in [
        (0, 1),
        (1, 2),
        *((n, n + 1) for n in range(len(places) // 2 - 1, len(places) // 2 + 1)),
        (len(places) - 2, len(places) - 1),
    ]:
        assert jump(viewer.read(Place(offset=places[at])), "Next record") == places[following]
        assert jump(viewer.read(Place(offset=places[following])), "Previous record") == places[at]
    for n, (place, following) in enumerate(zip(places, places[1:], strict=False)):
        if n % 97 == 0 or following % (256 << 10) == 0:  # some, and each that begins a file
            assert jump(viewer.read(Place(offset=place)), "Next record") == following
            assert jump(viewer.read(Place(offset=following)), "Previous record") == place


def jump(stretch: FileBytes, title: str) -> int | None:
    pointer = next(jump for jump in stretch.jumps if jump.title == title).pointer
    return pointer and pointer.offset


# What is no record


def damage(root, at: int, data: bytes) -> None:
    """Overwrite bytes at a position of the log of `ours`."""
    path = root / "commitlog" / f"{at // 16384 * 16384:020d}"
    with path.open("r+b") as file:
        file.seek(at % 16384)
        file.write(data)


def field_of(stretch: FileBytes, name: str) -> Field:
    return next(field for field in stretch.pieces[0].fields if field.name == name)


def records_of(root) -> list[tuple[int, int]]:
    return [place for base, data in stores.log_bytes(root) for place in plain_bytes.record_places(data, base)]


def test_a_changed_body_is_told_by_its_crc_with_both_values(own):
    root, geometry = own
    at, _ = records_of(root)[7]
    before = field_of(viewer_of(root, geometry).read(Place(offset=at)), "body_crc")
    body = field_of(viewer_of(root, geometry).read(Place(offset=at)), "body")
    assert before.right is True and before.value.endswith("(right)")
    damage(root, body.at, b"y")
    stretch = viewer_of(root, geometry).read(Place(offset=at))
    crc = field_of(stretch, "body_crc")
    assert crc.right is False and f"{before.raw:#010x} (WRONG: the body has 0x" in crc.value
    assert stretch.pieces[0].tone == "bad" and "another CRC" in stretch.pieces[0].sentence


def test_bytes_that_are_no_record_say_where_the_next_one_begins(own):
    root, geometry = own
    records = records_of(root)
    (at, size), (following, _) = records[9], records[10]
    damage(root, at + 4, b"\xde\xad\xbe\xef")
    stretch = viewer_of(root, geometry).read(Place(offset=at))
    assert (stretch.pieces[0].what, stretch.pieces[0].at, stretch.pieces[0].tone) == (
        "nothing",
        at,
        "bad",
    )
    assert (
        f"its magic would be 0xdeadbeef. The next record begins at {following:,}."
        in stretch.pieces[0].sentence
    )
    assert jump(stretch, "Next record") == following and jump(stretch, "Previous record") == records[8][0]
    assert viewer_of(root, geometry).read(Place(offset=at, length=size + 40)).pieces[1].at == following
    # From within it the same, since no record is found that it could be a part of.
    assert viewer_of(root, geometry).read(Place(offset=at + 20)).pieces[0].what == "nothing"


@pytest.mark.parametrize(
    "name, value",
    [
        ("total_size", 17),
        ("total_size", 1 << 30),
        ("body_length", -1),
        ("body_length", 1 << 20),
        ("properties_length", 30_000),
    ],
)
def test_a_wrong_length_is_shown_and_said_and_not_believed(own, name, value):
    root, geometry = own
    at, size = records_of(root)[5]
    field = field_of(viewer_of(root, geometry).read(Place(offset=at)), name)
    damage(root, field.at, value.to_bytes(field.length, "big", signed=True))
    stretch = viewer_of(root, geometry).read(Place(offset=at))
    assert stretch.pieces[0].tone == "bad" and "record" in stretch.pieces[0].sentence
    assert all(0 < field.length <= size for field in stretch.pieces[0].fields)


def test_a_record_that_states_another_place_is_wrong(own):
    root, geometry = own
    at, _ = records_of(root)[3]
    damage(root, at + 28, (at + 1).to_bytes(8, "big"))
    stated = field_of(viewer_of(root, geometry).read(Place(offset=at)), "log_offset")
    assert stated.right is False and stated.value == f"{at + 1:,} (WRONG: it lies at {at:,})"


def test_zeros_are_never_written_behind_the_end_and_lost_before_it(own):
    root, geometry = own
    records = records_of(root)
    at, size = records[-1]
    end = at + size
    assert (
        viewer_of(root, geometry).read(Place(offset=end)).pieces[0].sentence
        == f"Never written: the log ends at {end:,}, and this room was made ahead."
    )
    middle, length = records[20]
    damage(root, middle, bytes(length))
    stretch = viewer_of(root, geometry).read(Place(offset=middle))
    assert (stretch.pieces[0].what, stretch.pieces[0].tone) == (
        "room",
        "bad",
    ) and f"The next record begins at {records[21][0]:,}." in stretch.pieces[0].sentence
    (root / "abort").touch()  # now it is not known how far it was written
    assert (
        viewer_of(root, geometry)
        .read(Place(offset=end))
        .pieces[0]
        .sentence.startswith("Zeros, so no record: never written, or lost.")
    )


def test_the_end_of_a_file_is_named_and_leads_to_the_next(own):
    root, geometry = own
    (blank,) = [
        at
        for name, at, _, size in plain_bytes.log(*reversed(stores.log_bytes(root)[0]))
        if name == "total_size"
    ][-1:]
    stretch = viewer_of(root, geometry).read(Place(offset=blank))
    assert (stretch.pieces[0].what, field_of(stretch, "total_size").right) == ("blank", True)
    assert (
        stretch.after == BytePointer(kind="commitlog", offset=16384) and jump(stretch, "Next record") == 16384
    )
    # All bytes after the mark belong to it.
    assert viewer_of(root, geometry).read(Place(offset=blank + 9, length=4)).pieces[0].at == blank


def test_units_that_disagree_with_the_log_say_how(own):
    root, geometry = own
    path = root / "consumequeue" / "orders" / "1" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[0:8] = (5).to_bytes(8, "big")  # no record begins there
    data[20:28] = data[40:48]  # another message
    data[48:52] = (9).to_bytes(4, "big")  # another length
    data[72:80] = (9).to_bytes(8, "big")  # another tag
    data[80:100] = bytes(20)  # a hole
    path.write_bytes(data)
    pieces = viewer_of(root, geometry).read(Place("consumequeue", topic="orders", queue=1, length=120)).pieces
    sentences = [piece.sentence for piece in pieces]
    assert [piece.tone for piece in pieces] == ["bad"] * 5 + [""]
    assert (
        "no record begins at 5" in sentences[0]
        and "offset 2" in sentences[1]
        and "it says 9 bytes" in sentences[2]
        and "its tags code is 9" in sentences[3]
    )
    assert pieces[4].what == "hole" and sentences[5].startswith("Message U")


def test_slots_and_entries_that_cannot_be_say_so(own):
    root, geometry = own
    path = sorted((root / "index").iterdir())[-1]
    data = bytearray(path.read_bytes())
    data[40:44] = (60_000).to_bytes(4, "big")
    first = 40 + 16 * 4 + 20
    data[first + 16 : first + 20] = (3).to_bytes(4, "big")
    data[first + 24 : first + 32] = (3).to_bytes(8, "big")
    path.write_bytes(data)
    viewer = viewer_of(root, geometry)
    assert viewer.read(Place("index", slot=0)).pieces[0].sentence == "WRONG: it leads to no entry."
    entries = viewer.read(Place("index", entry=1)).pieces
    assert (
        entries[0].sentence == "WRONG: the entry before it is not lower."
        and entries[0].fields[3].pointer is None
    )
    assert entries[1].sentence.startswith("WRONG: no record begins at 3")


def test_a_header_alone_is_told_of_an_index_file_of_unknown_shape(own):
    root, _ = own
    path = sorted((root / "index").iterdir())[-1]
    path.write_bytes(path.read_bytes()[:-3])
    viewer = Viewer(StoreDirectory(root))
    header, rest = viewer.read(Place("index", length=200)).pieces
    assert header.what == "header" and "How many slots this file has is not known" in rest.sentence
    with pytest.raises(NotFoundError, match="--slots"):
        viewer.read(Place("index", slot=0))


# Bounds and what cannot be asked


def test_a_look_is_bounded_in_bytes_and_in_pieces(own, tmp_path):
    root, geometry = own
    with pytest.raises(FieldError, match="65536"):
        viewer_of(root, geometry).read(Place(length=MAX_BYTES + 1))
    small = Viewer(StoreDirectory(root, geometry=geometry), max_usual=50).read(Place())
    assert small.length == 50 and len(small.pieces[0].fields) == 22, (
        "all fields are named, also of bytes that are not shown"
    )
    golden_root, shape = golden("golden-crash", tmp_path)
    stretch = viewer_of(golden_root, shape).read(Place("index", slot=0, length=MAX_BYTES))
    assert len(stretch.pieces) == MAX_PIECES and stretch.cut == MAX_BYTES - stretch.length > 0


def test_places_that_are_not_there_are_not_found_and_those_that_cannot_be_are_refused(own):
    root, geometry = own
    viewer = viewer_of(root, geometry)
    for place, words in (
        (Place(offset=1 << 40), "is not in the commit log: its files hold 0 to"),
        (Place("consumequeue", topic="nowhere"), "has no files"),
        (Place("consumequeue", topic="orders", queue=0, unit=1 << 40), "is not in queue 0 of topic orders"),
        (Place("index", name="20200101000000000"), "there is no index file '20200101000000000'; there are 2"),
        (Place("index", slot=16), "has 16 slots, counted from 0"),
        (Place("checkpoint", offset=4096), "has 4,096 bytes"),
        (Place("timerlog"), "no message was timed yet"),
        (Place("timercheck"), "no file timercheck"),
    ):
        with pytest.raises(NotFoundError, match=words):
            viewer.read(place)
    for place in (Place("config"), Place(offset=-1), Place(length=0), Place("index", entry=1 << 63)):
        with pytest.raises(FieldError):
            viewer.read(place)
    for topic in ("", "../index", "a/b", ".", "a\0b"):
        with pytest.raises(NameError_):
            viewer.read(Place("consumequeue", topic=topic))


@pytest.mark.parametrize("name", stores.CLEAN)
def test_the_end_of_a_closed_log_is_found_without_walking_it(name, tmp_path):
    directory = StoreDirectory(stores.unpack(name, tmp_path))
    assert FileFacts(directory).positions().wrote == directory.log_end()
    fields = FileFacts(directory).positions()
    assert fields.min == 0 and fields.flushed == fields.wrote


def test_a_queue_is_known_by_halving_as_the_real_broker_knew_it(tmp_path):
    directory = StoreDirectory(stores.unpack("clean-small", tmp_path))
    spans = {
        (queue["topic"], queue["queueId"]): (queue["minOffset"], queue["maxOffset"])
        for queue in stores.facts("clean-small")["queues"]
    }
    facts = FileFacts(directory)
    for queue in directory.queues():
        assert facts.queue_span(*queue) == spans[queue], queue
    assert facts.queue_span("nowhere", 0) is None
