"""The settings of pops.

Keys and defaults are those of Apache's `BrokerConfig`.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker_store.config.setting import Checked, setting


@dataclass(frozen=True)
class PopSettings(Checked):
    """How pops read, wait, and bring messages again."""

    revive_queue_num: int = setting(
        "reviveQueueNum",
        8,
        "queues",
        "of the revive log, for pop checkpoints and their acknowledgements",
        low=1,
        high=128,
    )
    enable_retry_topic_v2: bool = setting(
        "enableRetryTopicV2",
        False,
        "",
        "popped messages that come again are stored in %RETRY%group+topic in place of %RETRY%group_topic",
    )
    retrieve_message_from_pop_retry_topic_v1: bool = setting(
        "retrieveMessageFromPopRetryTopicV1",
        True,
        "",
        "with enableRetryTopicV2, pops still read %RETRY%group_topic",
    )
    pop_from_retry_probability: int = setting(
        "popFromRetryProbability",
        20,
        "%",
        "so many of the pops read messages that came again first, the others read them last",
        low=0,
        high=100,
        live=True,
    )
    pop_from_retry_probability_for_priority: int = setting(
        "popFromRetryProbabilityForPriority",
        0,
        "%",
        "the same for pops that read queues by priority: 0 gives messages that came again the lowest "
        "priority, 100 the highest",
        low=0,
        high=100,
        live=True,
    )
    priority_order_asc: bool = setting(
        "priorityOrderAsc",
        True,
        "",
        "in a topic of the type PRIORITY 0 is the lowest priority; false: the highest",
        live=True,
    )
    default_message_request_mode: str = setting(
        "defaultMessageRequestMode",
        "PULL",
        "",
        "whether clients that leave the assignment of queues to the broker pull or pop, if no mode is set "
        "for their group",
        choices=("PULL", "POP"),
    )
    default_pop_share_queue_num: int = setting(
        "defaultPopShareQueueNum",
        -1,
        "clients",
        "with POP as the default, how many other clients pop the queues of each; 0 or less: all pop all",
        low=-1,
    )
    pop_polling_size: int = setting(
        "popPollingSize",
        1024,
        "pops",
        "with so many of a group waiting for one queue, or for a topic, more are answered POLLING_FULL",
        low=0,
    )
    max_pop_polling_size: int = setting(
        "maxPopPollingSize",
        100_000,
        "pops",
        "the same bound for all groups together; each costs about a kilobyte",
        low=0,
        high=1_000_000,
    )
