"""After how long a message of a group is tried again: the group's `groupRetryPolicy`.

Clients of the gRPC port get the policy with their settings, and wait so long. The broker follows it where it
stops to renew a message (`server/grpc/renewals.py`). The waits are milliseconds.
"""

from __future__ import annotations

from typing import NamedTuple

from broker_store.broker.groups import SubscriptionGroup

_S, _MIN, _H = 1_000, 60_000, 3_600_000
# Apache's defaults. They are the default delay levels, whatever messageDelayLevel says.
DEFAULT_STEPS_MS = (
    _S, 5 * _S, 10 * _S, 30 * _S, *(minutes * _MIN for minutes in range(1, 11)), 20 * _MIN, 30 * _MIN, _H,
    2 * _H,
)  # fmt: skip
# A renewed message was given at least once, so Apache leaves the first two steps out.
_FIRST_STEP = 2
_MAX_DOUBLINGS = 32


class CustomizedPolicy(NamedTuple):
    """A wait for each try; the last one for all further tries."""

    steps_ms: tuple[int, ...] = DEFAULT_STEPS_MS

    def wait_ms(self, tries: int) -> int:
        """Return the wait of a message that came again `tries` times."""
        return self.steps_ms[min(max(0, tries) + _FIRST_STEP, len(self.steps_ms) - 1)]


class ExponentialPolicy(NamedTuple):
    """A wait that is multiplied with each try."""

    initial_ms: int = 5 * _S
    max_ms: int = 2 * _H
    multiplier: int = 2

    def wait_ms(self, tries: int) -> int:
        """Return the wait of a message that came again `tries` times."""
        return min(self.initial_ms * self.multiplier ** min(max(0, tries), _MAX_DOUBLINGS), self.max_ms)


RetryPolicy = CustomizedPolicy | ExponentialPolicy


def policy_of(group: SubscriptionGroup) -> RetryPolicy:
    """Return the policy of a group. What is missing in it, or has another form, is Apache's default: a file
    of another version may have anything there."""
    policy = group.retry_policy
    if policy.get("type") == "EXPONENTIAL":
        given = policy.get("exponentialRetryPolicy")
        values = given if isinstance(given, dict) else {}
        default = ExponentialPolicy()
        return ExponentialPolicy(
            _duration(values.get("initial"), default.initial_ms),
            _duration(values.get("max"), default.max_ms),
            _duration(values.get("multiplier"), default.multiplier),
        )
    customized = policy.get("customizedRetryPolicy")
    steps = customized.get("next") if isinstance(customized, dict) else None
    if isinstance(steps, list) and steps and all(_is_duration(step) for step in steps):
        return CustomizedPolicy(tuple(steps))
    return CustomizedPolicy()


def _is_duration(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _duration(value: object, default: int) -> int:
    return value if type(value) is int and _is_duration(value) else default
