"""A read gives the same records as the slow store, from the map and by position."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_store.formats import record
from broker_store.formats.java_hash import java_hash
from broker_store.messages import GetRequest
from tests.support.hand_store import Clock, HandStore, message, small_settings
from tests.support.reference import ReferenceStore
from tests.support.stores import StoreSizes

SIZES = StoreSizes(16384, 400, 16, 64)
TAGS = (None, "a", "b", "c")


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """(a store that just wrote everything, one that was opened on the same bytes, the slow one)"""
    roots = [tmp_path_factory.mktemp(name) / "store" for name in ("hot", "cold")]
    opened = []
    for root in roots:
        store = HandStore(small_settings(root), Clock()).begin()
        for number in range(230):
            store.clock.advance(10)
            store.appender.put(
                message(
                    "T",
                    number % 3,
                    b"%d" % number * (1 + number % 90),
                    tag=TAGS[number % 4],
                    unique=f"u{number}",
                )
            )
        store.cleaning.delete_expired(any_age=True)
        opened.append(store)
    opened[1].close()
    opened[1] = HandStore(small_settings(roots[1]), Clock()).begin()
    for store in opened:
        store.flush()
        store.round()
        assert store.cleaning.delete_expired(any_age=True, most=1) == 1
    yield opened[0], opened[1], ReferenceStore(roots[0], SIZES)
    for store in opened:
        store.close()


@given(
    st.integers(0, 3),
    st.integers(0, 90),
    st.integers(1, 40),
    st.one_of(
        st.none(), st.lists(st.sampled_from(("a", "b", "c", "zz")), min_size=1, max_size=3, unique=True)
    ),
)
def test_any_request_is_answered_as_by_the_slow_store(stores, queue_id, offset, count, tags):
    hot, cold, slow = stores
    codes = None if tags is None else frozenset(map(java_hash, tags))
    expected = slow.get("T", queue_id, offset, count, "*" if tags is None else "||".join(tags))
    for store in (hot, cold):
        result = store.reads.get(GetRequest("T", queue_id, offset, count, tag_codes=codes))
        assert (result.status.name, result.next_offset, result.min_offset, result.max_offset) == (
            expected.status,
            expected.next_offset,
            expected.min_offset,
            expected.max_offset,
        )
        found = record.decode_all(result.body)
        assert [each.log_offset for each in found] == expected.log_offsets
        assert len(found) == result.count


@given(st.integers(30, 60), st.integers(1, 3000))
def test_bytes_are_bounded_but_one_message_is_always_given(stores, offset, max_bytes):
    for store in stores[:2]:
        result = store.reads.get(GetRequest("T", 0, offset, 32, max_bytes))
        assert result.count >= 1
        assert result.count == 1 or len(result.body) <= max_bytes
        following = store.reads.get(GetRequest("T", 0, result.next_offset, 1))
        file_end = result.next_offset % 20 == 0
        assert (
            file_end
            or result.count == 32
            or not following.count
            or len(result.body) + len(following.body) > max_bytes
        )


@given(st.integers(30, 76), st.sets(st.sampled_from(("a", "b", "c"))))
def test_following_next_offset_sees_every_wanted_message_once(stores, offset, tags):
    codes = frozenset(map(java_hash, tags)) or None
    for store in stores[:2]:
        seen, at = [], offset
        while at < store.reads.max_offset("T", 1):
            result = store.reads.get(GetRequest("T", 1, at, 5, tag_codes=codes))
            seen += [each.queue_offset for each in record.decode_all(result.body)]
            assert result.next_offset > at
            at = result.next_offset
        wanted = [
            number for number in range(offset, at) if codes is None or TAGS[(number * 3 + 1) % 4] in tags
        ]
        assert seen == wanted
