"""Checks of single settings. Each returns why a value is wrong, None if it is not."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from ipaddress import IPv4Network, IPv6Network, ip_network
from urllib.parse import urlsplit

Network = IPv4Network | IPv6Network


def topic_name(value: str) -> str | None:
    """Check a name of which a topic is created."""
    if not re.fullmatch(r"[%|a-zA-Z0-9_-]{1,120}", value):
        return "expected 1 to 120 letters, digits, % | _ or -, because a topic of that name is created"
    return None


def address_list(value: str) -> str | None:
    """Check a list of addresses."""
    for address in filter(None, (part.strip() for part in value.split(";"))):
        host, _, port = address.rpartition(":")
        if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            return "expected host:port, several joined by ;"
    return None


def networks(value: str) -> tuple[Network, ...]:
    """Return the addresses and networks of a list, joined by commas. Raises ValueError."""
    return tuple(ip_network(part) for part in map(str.strip, value.split(",")) if part)


METRIC_FAMILIES = ("ours", "apache", "exporter")


def metric_names(value: str) -> str | None:
    """Check a list of families of metrics."""
    names = [name.strip() for name in value.split(",")]
    if not set(names) <= set(METRIC_FAMILIES):
        return f"expected some of {', '.join(METRIC_FAMILIES)}, joined by commas"
    return None


def otlp_endpoint(value: str) -> str | None:
    """Check the address of a receiver of OpenTelemetry, and that the packages for it are installed."""
    if not value:
        return None
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError as error:
        return f"expected a URL: {error}"
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        return "expected http://host:port/path or https://host:port/path, without a user"
    if parts.query or parts.fragment or parts.path in ("", "/"):
        return "expected a path, mostly /v1/metrics, and nothing after it"
    if not all(
        map(_is_installed, ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http", "requests"))
    ):
        return "needs the packages of requirements-otlp.txt: pip install 'headpond[otlp]'"
    return None


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that it is in
        return False


def network_list(value: str) -> str | None:
    """Check a list of addresses and networks."""
    try:
        networks(value)
    except ValueError as error:
        return f"expected addresses or networks, several joined by a comma: {error}"
    return None


# What deploy/broker.conf.example has in place of passwords
PLACEHOLDER = "REPLACE-ME"


def json_with(*names: str) -> Callable[[str], str | None]:
    """Return the check of a setting that has JSON with these texts, or nothing."""

    def check(value: str) -> str | None:
        if not value:
            return None
        try:
            given = json.loads(value)
        except (ValueError, RecursionError):
            given = None
        texts = [given.get(name) for name in names] if isinstance(given, dict) else [None]
        if not all(isinstance(text, str) and text.strip() for text in texts):
            return "expected JSON: {" + ", ".join(f'"{name}": ".."' for name in names) + "}"
        if any(isinstance(text, str) and text.startswith(PLACEHOLDER) for text in texts):
            return f"it has a password of the example ({PLACEHOLDER}..), which others know: write your own"
        return None

    return check


def names_in(value: str) -> list[str]:
    """Return the names of a list, joined by commas."""
    return [name for part in value.split(",") if (name := part.strip())]


def request_list(value: str) -> str | None:
    """Check a list of requests."""
    for name in names_in(value):
        if not re.fullmatch(r"-?[0-9]{1,6}|[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z][A-Za-z0-9_]*)+", name):
            return "expected request codes or names of gRPC messages, several joined by a comma"
    return None
