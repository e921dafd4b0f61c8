"""The settings of TLS and of PROXY prologues, for every port of a process.

`tls.server.*` and `tls.enable` are system properties of Apache's servers (`TlsSystemConfig`).
"""

from __future__ import annotations

from dataclasses import dataclass

from broker_store.config.checks import network_list
from broker_store.config.setting import Checked, setting
from broker_store.errors import ConfigError

DISABLED, PERMISSIVE, ENFORCING = "disabled", "permissive", "enforcing"
NO_CLIENT_AUTH, OPTIONAL, REQUIRED = "none", "optional", "require"


@dataclass(frozen=True)
class TlsSettings(Checked):
    """The settings that all ports of a process get."""

    tls_server_mode: str = setting(
        "tls.server.mode",
        PERMISSIVE,
        "",
        "disabled: no port has TLS; permissive: connections with TLS and without; enforcing: only with TLS; "
        "the dashboard's port too",
        choices=(DISABLED, PERMISSIVE, ENFORCING),
    )
    tls_cert_path: str = setting(
        "tlsCertPath",
        "",
        "path",
        "certificate of the ports, PEM; without one the process makes its own; a key of Apache's proxy",
    )
    tls_key_path: str = setting(
        "tlsKeyPath",
        "",
        "path",
        "the key of that certificate, PEM without a password; a key of Apache's proxy",
    )
    tls_server_need_client_auth: str = setting(
        "tls.server.need.client.auth",
        NO_CLIENT_AUTH,
        "",
        "none: clients are asked for no certificate; optional: one that is given must be valid; require: "
        "each connection with TLS needs one",
        choices=(NO_CLIENT_AUTH, OPTIONAL, REQUIRED),
    )
    tls_server_trust_cert_path: str = setting(
        "tls.server.trustCertPath",
        "",
        "path",
        "authorities, PEM, one of which must have signed the certificate of a client",
    )
    proxy_protocol_addresses: str = setting(
        "proxyProtocolAddresses",
        "",
        "addresses",
        "addresses and networks whose connections may begin with a PROXY prologue (version 1 or 2) that "
        "names the client, joined by a comma; Apache reads one from every address",
        check=network_list,
        ours=True,
    )

    def __post_init__(self):
        super().__post_init__()
        if bool(self.tls_cert_path) != bool(self.tls_key_path):
            key = "tlsKeyPath" if self.tls_cert_path else "tlsCertPath"
            raise ConfigError(key, "", "expected a path: certificate and key are set together")
        if self.tls_server_need_client_auth != NO_CLIENT_AUTH and not self.tls_server_trust_cert_path:
            raise ConfigError(
                "tls.server.trustCertPath", "", "certificates of clients cannot be checked without it"
            )


@dataclass(frozen=True)
class TlsClientSettings(Checked):
    """The settings of the broker's own connections, which go to name servers."""

    tls_enable: bool = setting(
        "tls.enable", False, "", "whether the broker connects to the name servers of namesrvAddr by TLS"
    )
    tls_client_trust_cert_path: str = setting(
        "tls.client.trustCertPath",
        "",
        "path",
        "authorities, PEM, one of which must have signed the certificate of a name server; without them any "
        "certificate is accepted, as by Apache's broker",
    )
    tls_client_cert_path: str = setting(
        "tls.client.certPath",
        "",
        "path",
        "certificate of the broker for name servers that ask for one, PEM",
    )
    tls_client_key_path: str = setting("tls.client.keyPath", "", "path", "the key of that certificate, PEM")
    tls_client_key_password: str = setting(
        "tls.client.keyPassword", "", "", "the password of that key, if it has one", secret=True
    )

    def __post_init__(self):
        super().__post_init__()
        if bool(self.tls_client_cert_path) != bool(self.tls_client_key_path):
            key = "tls.client.keyPath" if self.tls_client_cert_path else "tls.client.certPath"
            raise ConfigError(key, "", "expected a path: certificate and key are set together")
