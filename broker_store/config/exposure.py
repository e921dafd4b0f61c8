"""What a start opens to whom, as far as its settings and options say it. It has no secret: the run file
records it for `manage.py check_deploy`."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker_store.config.checks import names_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """The answers of one start."""

    bind: str  # address of the broker, gRPC and name server ports
    web_bind: str | None  # address of the dashboard's port; None: it has none
    has_broker: bool  # False for a start that only shows a store, or the dashboard alone
    is_insecure: bool  # --insecure was given
    tls_mode: str  # tls.server.mode
    certificate: str  # its file
    is_own_certificate: bool  # made by the broker for itself
    client_certificates: str  # tls.server.need.client.auth
    proxy_addresses: str  # whose PROXY prologues are trusted
    authenticates: bool
    authorizes: bool
    authentication_whitelist: str
    authorization_whitelist: str
    has_inner_credentials: bool  # with which jobs and the demo sign
    has_name_server: bool  # in the same process
    has_open_name_server: bool  # takes changes from every address, unless these are named:
    name_server_changers: str
    percent_of_address: int
    web_hosts: str  # names of the dashboard beside loopback
    web_proxies: str  # whose X-Forwarded-For is trusted
    has_tls_proxy: bool  # BROKER_WEB_TLS: a proxy in front has TLS
    redis: str  # the address of a Redis that the broker does not start; "" for its own
    has_ha_port: bool = False  # it feeds slaves
    ha_port: int = 0  # 0: one above the broker's
    ha_slaves: str = ""  # haSlaveAddresses, which get the whole log
    # Files of the settings that have a password or a key, wherever they are
    secret_files: list[str] = field(default_factory=list)

    @property
    def unsigned(self) -> list[str]:
        """Return the codes and gRPC messages that every client may send without a signature, although others
        are refused. A right needs a name, so without one only what needs neither passes."""
        open_to_all = names_in(self.authentication_whitelist)
        if not self.authorizes:
            return open_to_all
        open_to_users = names_in(self.authorization_whitelist)
        return [name for name in open_to_all if name in open_to_users]
