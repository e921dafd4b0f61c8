"""Which topic and group names are allowed (docs/spec/store-format.md section 2.7).

A topic becomes the name of a directory, so nothing that is a path may pass: only letters, digits and `% | _
-`. The sentences are Apache's TopicValidator's, because clients show them.
"""

from __future__ import annotations

import re

from broker_store.errors import NameError_

MAX_TOPIC = 127
MAX_RETRY_TOPIC = 255
MAX_GROUP = 120
RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
# Groups of Apache's own jobs and tools; they need no retry topic and cannot be deleted.
SYSTEM_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"

_PATH = re.compile(r"[/\\\0]|\.{1,2}\Z")
_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+")
# Of a group's retry topic for messages that it popped; no client may name one with +.
_POP_RETRY_V2 = re.compile(r"%RETRY%[%|a-zA-Z0-9_-]+\+[%|a-zA-Z0-9_-]+")
_ALLOWED_OF_APACHE = "^[%|a-zA-Z0-9_-]+$"
_ALLOWED_IN_WORDS = "letters, digits and % | - _"


def check_topic(name: str) -> str:
    """Return `name` if it may be a topic. Raises NameError_ with Apache's sentence."""
    return _check(
        "topic", name, MAX_RETRY_TOPIC if name and name.startswith((RETRY_PREFIX, DLQ_PREFIX)) else MAX_TOPIC
    )


def check_stored_topic(name: str) -> str:
    """Return `name` if a record or a queue directory may hold it. Raises NameError_. The limit of the store
    (docs/spec/store-format.md section 2.7) is larger than that of a client: version 2 of the record has
    longer topics. The broker names retry topics of popped messages with a + if it is set to."""
    if name and len(name) <= MAX_RETRY_TOPIC and _POP_RETRY_V2.fullmatch(name):
        return name
    return _check("topic", name, MAX_RETRY_TOPIC)


def is_stored_topic(name: str) -> bool:
    """Return whether `check_stored_topic` accepts the name."""
    try:
        check_stored_topic(name)
    except NameError_:
        return False
    return True


def check_group(name: str) -> str:
    """Return `name` if it may be a producer or consumer group. Raises NameError_ with Apache's sentence.

    As in Apache's validateGroup, a name may begin as that of a retry topic: %RETRY%mine is another group than
    mine. With access control it needs the rights on mine (access/resources.py).
    """
    return _check("group", name, MAX_GROUP)


def _check(what: str, name: str, limit: int) -> str:
    if not name or not name.strip():
        raise NameError_(f"The specified {what} is blank.")
    if not _ALLOWED.fullmatch(name):
        raise NameError_(
            f"The specified {what} contains illegal characters, allowing only {_ALLOWED_OF_APACHE}"
        )
    if len(name) > limit:
        raise NameError_(f"The specified {what} is longer than {what} max length.")
    return name


def in_words(error: NameError_) -> str:
    """Return the sentence of an error for people, without a full stop: words replace Apache's regular
    expression."""
    return sentence_in_words(str(error)).rstrip(".")


def sentence_in_words(sentence: str) -> str:
    """Return an error sentence for people: Apache's regular expression is replaced by words."""
    return sentence.replace(_ALLOWED_OF_APACHE, _ALLOWED_IN_WORDS)


def is_path(name: str) -> bool:
    """Return whether a name contains parts of a path. For names that are only looked up; a name of something
    that is created must pass the checks above."""
    return _PATH.search(name) is not None


def retry_topic(group: str) -> str:
    """Return the topic with the messages that `group` sent back."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Return the topic with the messages that `group` gave up."""
    return DLQ_PREFIX + group


def pop_retry_topic(topic: str, group: str, *, version: int = 1) -> str:
    """Return the topic with the messages of `topic` that `group` popped and did not acknowledge in time."""
    return f"{RETRY_PREFIX}{group}{'+' if version == 2 else '_'}{topic}"


def popped_topic(name: str, group: str) -> str:
    """Return the topic whose messages a pop retry topic of `group` has; another topic is returned as it
    is."""
    for separator in "+_":
        prefix = RETRY_PREFIX + group + separator
        if name.startswith(prefix) and len(name) > len(prefix):
            return name[len(prefix) :]
    return name


def popping_group(name: str, topic: str) -> str | None:
    """Return the group whose pop retry topic for messages of `topic` has this name; None if it is not
    such a name."""
    for separator in "+_":
        group = name.removeprefix(RETRY_PREFIX).removesuffix(separator + topic)
        if group and name == f"{RETRY_PREFIX}{group}{separator}{topic}":
            return group
    return None


def pop_retry_splits(name: str) -> list[tuple[str, str]]:
    """Return each group and topic whose pop retry topic may have a name. A name of version 1 is the same for
    several, if they have a _."""
    rest = name.removeprefix(RETRY_PREFIX)
    if rest == name:
        return []
    version_2 = [(rest[:at], rest[at + 1 :]) for at, one in enumerate(rest) if one == "+"]
    return version_2 or [
        (rest[:at], rest[at + 1 :]) for at, one in enumerate(rest) if one == "_" and 0 < at < len(rest) - 1
    ]
