"""Bytes of any kind given to each decoder of a body."""

from hypothesis import given
from hypothesis import strategies as st

from broker_store.errors import FieldError
from broker_store.protocol import (
    client_bodies,
    offset_bodies,
    registration_body,
    route_bodies,
    table_bodies,
    topic_bodies,
)

DECODERS = [
    decoder
    for module in (client_bodies, offset_bodies, registration_body, route_bodies, table_bodies, topic_bodies)
    for name, decoder in sorted(vars(module).items())
    if name.startswith("decode_") and decoder.__module__ == module.__name__
]


@given(
    st.sampled_from(DECODERS),
    st.binary(max_size=60)
    | st.sampled_from(
        [
            b"{}",
            b"[]",
            b'{"offsetTable":{"a":1}}',
            b'{"table":{0:1}}',
            b'{"brokerAddrTable":{"a":{"brokerAddrs":{"x":1}}}}',
            b'{"topicConfigTable":{"a":[]}}',
            b'{"topicConfigTable":{0:{}}}',
            b'{"brokerAddrTable":{0:{}}}',
        ]
    ),
)
def test_any_body_is_decoded_or_a_field_error(decode, data):
    try:
        decode(data)
    except FieldError:
        pass
