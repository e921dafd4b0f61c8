"""The shares of a process, made from its settings."""

from __future__ import annotations

from broker_store.broker.shares import ALL, Shares
from broker_store.config.checks import networks
from broker_store.config.shares import PortSettings


def shares_of(settings: PortSettings, user_percent: int = ALL) -> Shares:
    """Return what one address may have of each total, and one user."""
    return Shares(
        settings.max_percent_of_address,
        user_percent,
        networks(settings.gateway_addresses),
        settings.max_unfinished_bytes,
    )
