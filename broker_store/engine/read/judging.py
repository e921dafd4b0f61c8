"""How much work it is to judge a record in Python, in steps of some 30 ns."""

from __future__ import annotations

from broker_store.messages import MessageFilter

STEPS_PER_CALL = 250
STEPS_PER_NODE = 10
# For each 128 bytes of properties once more: each node of an expression may search or read all of them.
LONG_SHIFT = 7


def steps_of_judging(message_filter: MessageFilter, bytes_of_properties: int) -> int:
    """Return the steps that a filter takes for a record with so many bytes of properties."""
    steps = STEPS_PER_CALL + STEPS_PER_NODE * message_filter.steps
    return steps * (1 + (bytes_of_properties >> LONG_SHIFT))
