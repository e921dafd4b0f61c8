"""How a start reads each file of config/ that the broker keeps; the store check uses the same
(check/walk.py)."""

from __future__ import annotations

from broker_store.access import state as access
from broker_store.broker import (
    delay,
    deleted_groups,
    groups,
    offsets,
    property_filters,
    static_topics,
    topics,
    transaction_metrics,
)
from broker_store.broker.pop import ordered, request_modes
from broker_store.engine.config_files import ConfigReader
from broker_store.formats.static_topics import read_file as read_static_topics
from broker_store.formats.topics import SCHEDULE_TOPIC

READERS = {
    topics.FILE_NAME: ConfigReader(
        topics.read_file,
        without="without it topics that have messages get the default settings, and others are not there",
        is_of_each_stop=True,
    ),
    # The .bak may make this broker the leader of a queue that has moved on.
    static_topics.FILE_NAME: ConfigReader(
        read_static_topics,
        without="without it the offsets of static topics are those of other queues",
        takes_backup=False,
    ),
    groups.FILE_NAME: ConfigReader(
        groups.read_file, without="without it settings of groups are the default", is_of_each_stop=True
    ),
    offsets.FILE_NAME: ConfigReader(
        offsets.read_file,
        without="without it each group starts at the offset that its clients choose",
        is_of_each_stop=True,
    ),
    delay.FILE_NAME: ConfigReader(
        delay.read_file,
        without="without it delayed messages are delivered once more",
        is_of_each_stop=True,
        of_topic=SCHEDULE_TOPIC,
    ),
    # The next heartbeat of each group brings its filters.
    property_filters.FILE_NAME: ConfigReader(
        lambda text: list(property_filters.read_file(text)), is_needed=False
    ),
    request_modes.FILE_NAME: ConfigReader(
        request_modes.read_file, without="without it each group pulls", is_needed=True
    ),
    # Each state is a record of the log too.
    ordered.FILE_NAME: ConfigReader(ordered.read_file, is_needed=False),
    deleted_groups.FILE_NAME: ConfigReader(
        deleted_groups.read_file,
        without="without it messages that deleted groups had popped may come again to new groups of their "
        "names",
    ),
    # The .bak may give a right that was withdrawn.
    access.FILE_NAME: ConfigReader(
        access.read_file,
        without="without it only the users of the settings are known",
        takes_backup=False,
    ),
    # No message depends on this file: it holds counts for operators.
    transaction_metrics.FILE_NAME: ConfigReader(transaction_metrics.read_file, is_needed=False),
}
