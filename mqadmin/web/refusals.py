"""Counts the refusals of the dashboard's port together with those of the broker."""

from __future__ import annotations

import functools
import logging
from typing import Any

from broker_store.errors import StoreClosedError

log = logging.getLogger(__name__)


def count_refusal(cause: str, **case: Any) -> None:
    """Add to what the broker refused (`value`, `limit`, `who`, `said`). While there is no broker to count,
    write it to the log."""
    from mqadmin.cluster.current import current_cluster

    cluster = current_cluster()
    try:
        cluster.call(functools.partial(cluster.refuse, cause, **case))
    except StoreClosedError:
        log.info("refused, %s: %s", cause, case)
