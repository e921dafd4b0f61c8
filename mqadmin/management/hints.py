"""Hints for problems of a command: what to do, in options and verbs instead of requests."""

from __future__ import annotations

from broker_store.rest.problems import BROKERS_OWN_HINT

HINTS = {
    "invalid": "see --help for what this command takes",
    "invalid_fields": "see --help for what this command takes",
    "unauthorized": "run it as the user that the broker runs as",
    "forbidden": "run it as the user that the broker runs as",
    "csrf": "run it as the user that the broker runs as",
    "topic_not_found": "create it: manage.py topic create NAME (or message send --create)",
    "group_not_found": "create it: manage.py group create NAME",
    "queue_not_found": "manage.py topic show NAME shows which queues it has",
    "method_not_allowed": "the broker has another version than this command: use its manage.py",
    "conflict": "to change it, use the verb update",
    "confirmation_needed": "use --confirm with its name",
    "key_reused": "repeat the command",
    "starting": "wait; manage.py store status shows the progress",
    "unavailable": "manage.py store status shows the flag and its cause",
    "read_only": "a sync failed or the store was opened for inspection: see manage.py store status",
    "store_failed": "the broker's log names the file; manage.py check_store DIR reports all damage",
    "damaged": "manage.py store status shows the flag; manage.py check_store DIR reports all damage; to go "
    "on, read from the next offset",
}


# Hints for the verb delete, which needs something that exists.
OF_DELETE = {
    "topic_not_found": "manage.py topic list shows the topics that are there",
    "group_not_found": "manage.py group list shows the groups that are there",
}


def of(code: str, hint: str, verb: str) -> str:
    """Return the hint for a command's verb; the broker's own hint for codes that are not in HINTS."""
    if hint == BROKERS_OWN_HINT:
        return hint
    if verb == "delete" and code in OF_DELETE:
        return OF_DELETE[code]
    return HINTS.get(code, hint)
