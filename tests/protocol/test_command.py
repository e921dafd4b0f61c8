"""Names of clients' versions."""

from __future__ import annotations

import pytest

from broker_store.protocol.command import VERSION, version_name


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (VERSION, "V5_3_3"),
        (211, "version 211"),
        (212, "V4_0_0_SNAPSHOT"),
        (213, "V4_0_0"),
        (317, "V4_5_2"),  # that of the Go client
        (409, "V4_9_8"),
        (412, "V5_0_0_SNAPSHOT"),
        (413, "V5_0_0"),
        (437, "V5_1_2"),
        (513, "V5_5_0"),
        (611, "V5_9_9"),
        (612, "version 612"),
        (-1, "version -1"),
    ],
)
def test_a_version_has_the_name_that_apache_gives_it(number, name):
    assert version_name(number) == name
