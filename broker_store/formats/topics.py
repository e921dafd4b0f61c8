"""Topics that every broker has, and the bits of a topic's permission (docs/spec/store-format.md section 8).

Apache's names are in its TopicValidator, the bits in its PermName.
"""

from __future__ import annotations

from broker_store.formats.timer_log import TIMER_TOPIC

PERM_INHERIT, PERM_WRITE, PERM_READ = 1, 2, 4
PERM_READ_WRITE = PERM_READ | PERM_WRITE
AUTO_CREATE_TOPIC = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"  # unless the setting msgTraceTopicName names another
CHECK_MAX_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
SYSTEM_PREFIX = "rmq_sys_"

# No client may send to these (Apache's TopicValidator.isNotAllowedSendTopic). The timer topic is added here:
# its records name the topic of their delivery, which is checked only when the broker itself writes them.
FORBIDDEN_TO_SEND = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        TIMER_TOPIC,
    }
)


def is_of_broker(topic: str) -> bool:
    """Return whether a topic is one that brokers write to for themselves, by its name."""
    return topic in FORBIDDEN_TO_SEND or topic.startswith(SYSTEM_PREFIX)


# Types of messages, and the attribute of a topic that has one
MESSAGE_TYPE = "message.type"
MIXED = "MIXED"
PRIORITY = "PRIORITY"
NORMAL = "NORMAL"  # also of a topic without the attribute
SERVED_TYPES = (NORMAL, "FIFO", "DELAY", "TRANSACTION", PRIORITY, MIXED)  # which a form offers
# In the order of Apache's answer
MESSAGE_TYPES = ("UNSPECIFIED", MIXED, "TRANSACTION", PRIORITY, "FIFO", "DELAY", "LITE", NORMAL)
