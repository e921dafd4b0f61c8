"""The facts of a deployment, and findings about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A port, and who is served there."""

    name: str
    address: str  # host and port
    reached_by: str
    tls: str
    served: str  # who is served


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The certificate of the ports."""

    file: str
    is_own: bool  # made by the broker for itself
    subject: str | None = None  # None: it cannot be read, as `failure` says, or there is none yet
    issuer: str | None = None
    names: list[str] = field(default_factory=list)
    ends_ms: int | None = None
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessUsers:
    """The users of access control, without their secrets."""

    names: list[str]
    super_users: list[str]  # enabled ones
    weak: list[str]  # each with why its secret is weak
    failure: str = ""  # why they are unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardUsers:
    """The users of the dashboard."""

    active: int
    super_users: list[str]
    by_role: dict[str, int]
    with_first_password: list[str]  # have not set one of their own
    tokens: int  # not revoked
    backup_schedules: int
    failure: str = ""  # why they are unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFile:
    """A file or directory that other users of the machine may read or enter."""

    path: str
    mode: str  # octal
    is_writable: bool  # others may change it
    has_secrets: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is wrong, and what to do."""

    id: str
    severity: Severity
    what: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The whole report."""

    data: str
    of: str  # which start the report is about
    ports: list[Port]
    open_without_login: list[str]  # addresses of the dashboard
    certificate: Certificate | None  # None without TLS
    access: AccessUsers | None  # None without access control
    dashboard: DashboardUsers | None  # None without a dashboard
    open_files: list[OpenFile]
    findings: list[Finding]

    @property
    def worst(self) -> Severity | None:
        """The severity of the worst finding, None without any."""
        found = {finding.severity for finding in self.findings}
        return next((severity for severity in SEVERITIES if severity in found), None)
