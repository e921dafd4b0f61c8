"""Addresses as texts."""

import pytest

from broker_store.errors import PeerError
from broker_store.protocol.host_port import split_address


@pytest.mark.parametrize(
    ("text", "found"),
    [("h:1", ("h", 1)), ("10.0.0.1:65535", ("10.0.0.1", 65_535)), ("[::1]:10911", ("::1", 10_911))],
)
def test_host_and_port_of_an_address(text, found):
    assert split_address(text) == found


def test_a_port_may_be_missing_where_there_is_a_default():
    assert split_address("names", 9876) == ("names", 9876)


@pytest.mark.parametrize(
    "text", ["", "h", "h:", ":1", "h:x", "h:-1", "h:65536", "h:1e3", "h:²", "h:" + "9" * 5000]
)
def test_another_text_is_refused_and_never_an_error_of_another_kind(text):
    with pytest.raises(PeerError, match="is no address, expected host:port"):
        split_address(text)
