"""The files of a broker's id in controller mode, in the store: `brokerIdentity`, and before the controller
has agreed `brokerIdentity-temp`.

    brokerIdentity        DefaultCluster#broker-a#1
    brokerIdentity-temp   DefaultCluster#broker-a#2#127.0.0.1:10911;1795366966763

The temporary file has the check code of the request for the id, so that it is repeated with the same code
after a crash. Source: Apache's `BrokerMetadata` and `TempBrokerMetadata`.
"""

from __future__ import annotations

from typing import NamedTuple

from broker_store.errors import FormatError

FILE_NAME, TEMPORARY_NAME = "brokerIdentity", "brokerIdentity-temp"


class BrokerIdentity(NamedTuple):
    """Who a broker is for its controllers. `check_code` is of an id that is not agreed yet, else empty."""

    cluster: str
    name: str
    number: int
    check_code: str = ""


def encode(identity: BrokerIdentity) -> bytes:
    """Return the content of the file."""
    parts = [identity.cluster, identity.name, str(identity.number)]
    return "#".join([*parts, identity.check_code] if identity.check_code else parts).encode()


def decode(data: bytes, *, is_temporary: bool = False) -> BrokerIdentity:
    """Return the identity of a file. Raises FormatError."""
    parts = data.decode("utf-8", "replace").strip().split("#")
    if len(parts) != 3 + is_temporary or not all(parts) or not parts[2].isascii() or not parts[2].isdigit():
        raise FormatError("no broker identity: cluster#name#id" + "#checkCode" * is_temporary)
    return BrokerIdentity(parts[0], parts[1], int(parts[2]), parts[3] if is_temporary else "")
