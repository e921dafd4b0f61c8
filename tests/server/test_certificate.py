"""The certificate of a TLS port: made, kept, renewed, or given."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from broker_store.engine.disk.disk import Disk
from broker_store.errors import ConfigError, DamagedStoreError
from broker_store.server.certificate import (
    FILE,
    FOR_CLIENTS,
    RENEWED_DAYS,
    VALID_DAYS,
    Certificate,
    ClientAuth,
    Contexts,
    self_signed,
)

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000


class Clock:
    now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


def made(directory: Path, clock: Clock, given=None) -> Certificate:
    return Certificate(given, directory / "tls", ["localhost", "127.0.0.1"], clock, Disk())


def test_the_first_start_makes_a_certificate_that_only_its_owner_may_read(tmp_path):
    made(tmp_path, Clock()).open()
    file, for_clients = tmp_path / "tls" / FILE, tmp_path / "tls" / FOR_CLIENTS
    paths = (file.parent, file, for_clients)
    assert [os.stat(path).st_mode & 0o777 for path in paths] == [0o700, 0o600, 0o600]
    key, begin, certificate = file.read_text().partition("-----BEGIN CERTIFICATE")
    assert "PRIVATE" in key and for_clients.read_text() == begin + certificate
    found = x509.load_pem_x509_certificate(file.read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert (found.not_valid_after_utc - found.not_valid_before_utc).days == VALID_DAYS + 1


def test_it_is_kept_over_starts_until_it_ends_soon(tmp_path):
    clock, file = Clock(), tmp_path / "tls" / FILE
    made(tmp_path, clock).open()
    first = file.read_bytes()
    clock.now_ms += (VALID_DAYS - RENEWED_DAYS - 1) * DAY_MS
    certificate = made(tmp_path, clock)
    certificate.open()
    assert file.read_bytes() == first and certificate.changed() is None
    clock.now_ms += 2 * DAY_MS
    assert isinstance(certificate.changed(), Contexts)
    assert file.read_bytes() != first and certificate.changed() is None


@pytest.mark.parametrize("content", [b"", b"nothing of PEM", self_signed([], NOW_MS)[:300]])
def test_a_file_that_cannot_be_used_is_made_again(tmp_path, content):
    (tmp_path / "tls").mkdir()
    (tmp_path / "tls" / FILE).write_bytes(content)
    made(tmp_path, Clock()).open()
    x509.load_pem_x509_certificate((tmp_path / "tls" / FILE).read_bytes())


def test_a_new_certificate_in_the_place_of_another_is_told_with_its_reason(tmp_path, caplog):
    clock, file = Clock(), tmp_path / "tls" / FILE
    made(tmp_path, clock).open()
    assert not caplog.records, "there was none that clients trust"
    made(tmp_path, clock).open()
    assert not caplog.records
    for spoil, why in (
        (lambda: file.write_bytes(b"nothing of PEM"), f"{FILE} cannot be used ("),
        (file.unlink, f"{FILE} is missing: "),
        (lambda: setattr(clock, "now_ms", NOW_MS + VALID_DAYS * DAY_MS), f"{FILE} ends soon: "),
    ):
        spoil()
        made(tmp_path, clock).open()
        (record,) = caplog.records
        assert (
            record.levelname == "WARNING" and f"a new certificate was made, because {why}" in record.message
        )
        assert "clients that trust the old one refuse the new one" in record.message
        caplog.clear()


def test_a_name_that_a_kept_certificate_lacks_is_warned_of_once_a_start(tmp_path, caplog):
    def at(*wanted: str) -> Certificate:
        names = ["localhost", *wanted]
        return Certificate(None, tmp_path / "tls", names, Clock(), Disk(), wanted=wanted)

    at("127.0.0.1", "::1", "Broker.example").open()
    first = (tmp_path / "tls" / FILE).read_bytes()
    at("127.0.0.1", "::1", "broker.EXAMPLE").open()
    assert not caplog.records
    certificate = at("127.0.0.1", "10.1.2.3", "other.example")
    certificate.open()
    certificate.changed()
    (record,) = caplog.records
    assert f"{FILE} does not state 10.1.2.3, other.example" in record.message
    assert (tmp_path / "tls" / FILE).read_bytes() == first
    (tmp_path / "tls" / FILE).unlink()
    certificate.changed()
    caplog.clear()
    at("10.1.2.3", "other.example").open()
    assert not caplog.records


@pytest.mark.parametrize("name", [FILE, FOR_CLIENTS])
def test_a_directory_in_the_place_of_a_file_is_to_be_moved_out(tmp_path, name):
    (tmp_path / "tls" / name).mkdir(parents=True)
    with pytest.raises(DamagedStoreError, match=f"{name}: is no regular file. Move it out of the store"):
        made(tmp_path, Clock()).open()
    assert [path.name for path in (tmp_path / "tls").iterdir()] == [name]


def test_a_given_certificate_may_be_a_link_which_is_replaced(tmp_path):
    """As programs that renew certificates and mounted secrets have it."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "own.pem").write_bytes(self_signed(["broker.example"], NOW_MS))
    current, given = tmp_path / "current", tmp_path / "own.pem"
    current.symlink_to("first")
    given.symlink_to("current/own.pem")
    own = made(tmp_path, Clock(), (given, given))
    own.open()
    assert own.changed() is None
    current.unlink()
    with pytest.raises(ConfigError):
        own.changed()
    current.symlink_to("second")
    assert isinstance(own.changed(), Contexts)
    clients = ClientAuth(given, is_required=True)
    Certificate((given, given), tmp_path / "tls", [], Clock(), Disk(), clients).open()


def test_a_given_certificate_is_used_and_read_again_when_it_was_replaced(tmp_path):
    certificate, key = tmp_path / "own.crt", tmp_path / "own.key"
    for file in (certificate, key):
        file.write_bytes(self_signed(["broker.example"], NOW_MS))
    with pytest.raises(ConfigError, match="KEY_VALUES_MISMATCH|mismatch"):
        made(tmp_path, Clock(), (certificate, key)).open()
    key.write_bytes(certificate.read_bytes())
    own = made(tmp_path, Clock(), (certificate, key))
    own.open()
    assert own.changed() is None and not (tmp_path / "tls").exists()
    for file in (certificate, key):
        file.write_bytes(b"torn")
    with pytest.raises(ConfigError):
        own.changed()
    renewed = self_signed(["broker.example"], NOW_MS)
    for file in (certificate, key):
        file.write_bytes(renewed)
    assert own.changed() is not None and own.changed() is None


def test_a_given_certificate_that_ends_is_warned_of_once(tmp_path, caplog):
    clock, file = Clock(), tmp_path / "own.pem"
    file.write_bytes(self_signed(["broker.example"], NOW_MS))
    own = made(tmp_path, clock, (file, file))
    own.open()
    clock.now_ms += (VALID_DAYS - RENEWED_DAYS - 1) * DAY_MS
    assert own.changed() is None and not caplog.messages
    clock.now_ms += 3 * DAY_MS
    assert own.changed() is None and own.changed() is None
    assert caplog.messages == [f"the certificate {file} ends in 28 days: replace it and its key"]
    caplog.clear()
    clock.now_ms += 100 * DAY_MS
    made(tmp_path, clock, (file, file)).open()
    assert caplog.messages == [f"the certificate {file} has ended: replace it and its key"]
    caplog.clear()
    file.write_bytes(self_signed(["broker.example"], clock.now_ms))
    assert own.changed() is not None and not caplog.messages


@pytest.mark.parametrize("content", [None, b"", b"nothing of PEM"])
def test_a_given_file_that_cannot_be_used_is_named(tmp_path, content):
    file = tmp_path / "own.pem"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"tlsCertPath.*own\.pem"):
        made(tmp_path, Clock(), (file, file)).open()


def test_a_key_with_a_password_is_refused_without_asking_for_it(tmp_path):
    plain = self_signed([], NOW_MS)
    key = serialization.load_pem_private_key(plain, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    file = tmp_path / "own.pem"
    file.write_bytes(key + plain[plain.index(b"-----BEGIN CERT") :])
    with pytest.raises(ConfigError, match="password"):
        made(tmp_path, Clock(), (file, file)).open()
