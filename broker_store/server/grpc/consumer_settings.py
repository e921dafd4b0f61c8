"""What the broker decides of the settings of a consumer (docs/spec/grpc.md section 2)."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

from broker_store.broker.groups import SubscriptionGroup
from broker_store.broker.retry_policy import ExponentialPolicy, policy_of
from broker_store.formats.pop_records import MAX_MESSAGES
from broker_store.protocol.grpc.v2.definition_pb2 import (
    CustomizedBackoff,
    ExponentialBackoff,
    RetryPolicy,
    Settings,
)

# Defaults of Apache's proxy.
MIN_POLL_MS, MAX_POLL_MS = 5_000, 20_000
LITE_SUBSCRIPTION_QUOTA, MAX_LITE_TOPIC_BYTES = 2_000, 64


def merge_consumer(settings: Settings, group: SubscriptionGroup) -> None:
    """Put the broker's values into the settings of a client of `group`."""
    subscription = settings.subscription
    subscription.fifo = group.consume_message_orderly
    subscription.receive_batch_size = MAX_MESSAGES
    subscription.long_polling_timeout.CopyFrom(duration(MAX_POLL_MS))
    subscription.lite_subscription_quota = LITE_SUBSCRIPTION_QUOTA
    subscription.max_lite_topic_size = MAX_LITE_TOPIC_BYTES
    settings.backoff_policy.CopyFrom(_policy(group))


def max_attempts(group: SubscriptionGroup) -> int:
    """Return how often a message is given to a group, before it becomes a dead letter."""
    return max(0, min(group.retry_max_times, (1 << 31) - 2)) + 1


def _policy(group: SubscriptionGroup) -> RetryPolicy:
    policy = policy_of(group)
    found = RetryPolicy(max_attempts=max_attempts(group))
    if isinstance(policy, ExponentialPolicy):
        found.exponential_backoff.CopyFrom(
            ExponentialBackoff(
                initial=duration(policy.initial_ms),
                max=duration(policy.max_ms),
                multiplier=policy.multiplier,
            )
        )
    else:
        found.customized_backoff.CopyFrom(
            CustomizedBackoff(next=[duration(step_ms) for step_ms in policy.steps_ms])
        )
    return found


def duration(ms: int) -> Duration:
    """Return milliseconds as a duration."""
    return Duration(seconds=ms // 1_000, nanos=ms % 1_000 * 1_000_000)


def milliseconds(given: Duration) -> int:
    """Return a duration in milliseconds."""
    return given.seconds * 1_000 + given.nanos // 1_000_000
