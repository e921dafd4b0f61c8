"""Whether the clients of a group pull or pop a topic: config/messageRequestMode.json
(docs/spec/pop.md section 7).

An administrator sets the mode. A client that leaves the assignment of queues to the broker learns it with its
queues; others decide for themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from broker_store import throttle
from broker_store.errors import DamagedStoreError, FormatError, LimitError
from broker_store.excerpts import excerpt, text_excerpt
from broker_store.formats import config_json
from broker_store.formats.names import RETRY_PREFIX

FILE_NAME = "messageRequestMode.json"
PULL, POP = "PULL", "POP"
MODES = (PULL, POP)
# Of all groups together. Each is an entry in a file that is always written as a whole.
MAX_ENTRIES = 20_000
_TABLE = "messageRequestModeMap"


class TooManyModesError(LimitError):
    """One more mode would exceed the bound of all groups together."""

    cause = "limit of modes"


class RequestMode(NamedTuple):
    """How the clients of a group get the messages of a topic.

    With POP, `share` is how many other clients pop the queues of each, 0 or less for all queues.
    """

    mode: str = PULL
    share: int = 0


class RequestModes:
    """The modes that were set. `default` applies to the others, and never to retry topics.

    `on_change()` is called after each change.
    """

    def __init__(self, default: RequestMode):
        self._default = default
        self._table: dict[tuple[str, str], RequestMode] = {}
        self.dirty = False
        self.on_change: Callable[[], None] = lambda: None

    def get(self, topic: str, group: str) -> RequestMode:
        found = self._table.get((topic, group))
        if found is not None:
            return found
        return RequestMode() if topic.startswith(RETRY_PREFIX) else self._default

    def of_group(self, group: str) -> dict[str, RequestMode]:
        """Return topic -> mode, as far as modes were set for a group."""
        return {topic: mode for (topic, name), mode in self._table.items() if name == group}

    def put(self, topic: str, group: str, mode: RequestMode) -> None:
        """Set the mode of a group for a topic. Raises TooManyModesError."""
        if (topic, group) not in self._table and len(self._table) >= MAX_ENTRIES:
            count = len(self._table)
            raise TooManyModesError(
                f"no room for a mode of group {group:.120}: {count} are set", count, MAX_ENTRIES
            )
        self._table[topic, group] = mode
        self.dirty = True
        self.on_change()

    def to_json(self) -> dict[str, object]:
        """Return the content of messageRequestMode.json, which also answers GET_ALL_MESSAGE_REQUEST_MODE."""
        return {_TABLE: self._by_topic()}

    def _by_topic(self) -> dict[str, dict[str, object]]:
        topics: dict[str, dict[str, object]] = {}
        for (topic, group), (mode, share) in list(self._table.items()):
            topics.setdefault(topic, {})[group] = {
                "consumerGroup": group,
                "mode": mode,
                "popShareQueueNum": share,
                "topic": topic,
            }
        return topics

    def picture(self) -> Callable[[], bytes]:
        """Return a function that makes the file's text from the table as it is at its call, in any thread."""

        def text() -> bytes:
            self.dirty = False  # first, so that a later change is written by the next save
            return config_json.write_table({}, _TABLE, throttle.in_pieces(self._by_topic().items()))

        return text

    def load(self, text: str) -> None:
        """Take over a messageRequestMode.json. Raises DamagedStoreError when it is invalid; then nothing has
        changed."""
        try:
            found = read_file(text)
        except FormatError as error:
            advice = "Put a sound copy in its place, or remove it and its .bak: then each group pulls."
            raise DamagedStoreError(str(error), file=f"config/{FILE_NAME}", advice=advice) from error
        self._table = found
        self.dirty = False


def read_file(text: str) -> dict[tuple[str, str], RequestMode]:
    """Return the mode by topic and group of a messageRequestMode.json. Raises FormatError."""
    _, table, _ = config_json.read_table(text, _TABLE)
    found = {}
    for topic, groups in table.items():
        if not isinstance(groups, dict):
            raise FormatError(f"{_TABLE}: {excerpt(topic)} must be an object", found=text_excerpt(groups))
        for group, value in groups.items():
            if not isinstance(value, dict):
                raise FormatError(
                    f"the mode of group {excerpt(group)} must be an object", found=text_excerpt(value)
                )
            found[str(topic), str(group)] = mode_of(value)
    return found


def mode_of(value: dict[str, object]) -> RequestMode:
    """Return the mode in an object of Apache's. Raises FormatError."""
    mode, share = value.get("mode"), value.get("popShareQueueNum", 0)
    if mode not in MODES:
        raise FormatError("mode must be PULL or POP", found=text_excerpt(mode))
    if type(share) is not int or not -(1 << 31) <= share < 1 << 31:
        raise FormatError("popShareQueueNum must be an integer", found=text_excerpt(share))
    return RequestMode(str(mode), share)
