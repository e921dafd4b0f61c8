"""Bodies of topics."""

import pytest

from broker_store.protocol import (
    topic_bodies,
)


@pytest.mark.parametrize("count", [0, 1, 1_024, 1_025, 3_000])
def test_a_long_list_of_topics_is_written_in_steps(count):
    names = [f"ä-{number}" for number in range(count)]
    steps, taken = topic_bodies.topic_list_in_steps(iter(names)), 0
    while True:
        try:
            next(steps)
            taken += 1
        except StopIteration as end:
            assert end.value == topic_bodies.encode_topic_list(names)
            break
    assert taken == -(-count // topic_bodies.NAMES_PER_STEP)
