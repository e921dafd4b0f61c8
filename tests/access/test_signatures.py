"""Signatures are HMAC with SHA-1, and what is remembered of names of fields changes none of them."""

from __future__ import annotations

import base64
import hmac
from itertools import permutations

import pytest

from broker_store.access import signatures
from broker_store.access.signatures import Signer, signature_of, signed_content

FIELDS = {"b": "two", "AccessKey": "ann", "a": "one", "é": "three", "Signature": "x"}


@pytest.mark.parametrize("characters", [1, 20, 63, 64, 65, 1_024])
@pytest.mark.parametrize("content", [b"", b"text", bytes(range(256)) * 40])
def test_a_signature_is_hmac_with_sha1(characters, content):
    secret = "é" + "s" * (characters - 1)
    signer = Signer(secret)
    for _ in range(2):  # what is computed once is not changed by a use
        expected = base64.b64encode(hmac.digest(secret.encode(), content, "sha1"))
        assert signer.sign(content) == expected
    assert signature_of(secret, content) == expected.decode()
    assert signer.has_signed(content, expected.decode())
    for wrong in ("", "é", "\ud800", expected.decode()[:-1], expected.decode().lower() + "="):
        assert not signer.has_signed(content, wrong)


def test_the_order_in_which_fields_come_does_not_count():
    for names in permutations(FIELDS):
        fields = {name: FIELDS[name] for name in names}
        for _ in range(2):  # sorted, then remembered
            assert signed_content(fields, b"!", 513) == b"annonetwothree!"
    assert signed_content(FIELDS | {"a": "", "b": "0"}, b"", 513) == b"ann0three"
    assert signed_content({"a": "one"}, b"", 513) == b"one" and signed_content({}, b"!", 513) == b"!"


def test_only_old_clients_leave_a_field_unsigned():
    fields = {"a": "one", "_UNIQUE_KEY_QUERY": "true", "Signature": "x"}
    for version, expected in ((399, b"one"), (400, b"trueone"), (399, b"one"), (513, b"trueone")):
        assert signed_content(fields, b"", version) == expected


def test_what_is_remembered_of_names_is_bounded(monkeypatch):
    monkeypatch.setattr(signatures, "MAX_CACHED", 3)
    signatures._readers.clear()
    for number in range(10):
        signed_content({f"n{number}": "", "a": "", "Signature": ""}, b"", 513)
        assert len(signatures._readers) <= 3
    assert signed_content({"x" * 60_000: "two", "a": "one"}, b"", 513) == b"onetwo"
    assert all(len("".join(names)) < 20 for names in signatures._readers)
