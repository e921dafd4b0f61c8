"""One tree of errors, split by whose fault it is and what to do next.

    BrokerStoreError
    ├── MisuseError             a caller of ours broke a rule: mend the call
    │   ├── ConfigError         a setting is unknown or wrong: mend the setting
    │   └── StoreClosedError    the store is not open (any more)
    ├── PeerError               bytes or names from outside break the rules: refuse, change nothing
    │   ├── ProtocolError       a frame cannot be parsed: close that connection
    │   ├── FieldError          one header field is missing or wrong: answer so
    │   ├── LimitError          there are as many of something as there may be
    │   └── NameError_          the name of a topic or group is not allowed
    │       └── LookupNameError the name of a file, job or start, which one looks up, cannot be one
    ├── FormatError             bytes or values are not what their format says: who read them knows whose they
                                are
    ├── StoreError              what is on disk, or the disk itself
    │   ├── StoreLockedError    somebody else holds the store
    │   ├── DamagedStoreError   bytes that were once synced are not what they must be
    │   ├── DiskFullError       no room: refused, heals by itself
    │   ├── OtherDiskError      a file cannot be renamed onto another file system: copy it
    │   └── SyncError           a sync failed: final, the store turns read-only
    └── NotFoundError           what was asked for is not there

A message of an error carries the numbers one needs (file, offset, expected, found) and says what to do.
`cause` of a class is the word under which refusals are counted and that users read; the name of a class is
for programs and logs.
"""

from __future__ import annotations

from broker_store.excerpts import excerpt


class BrokerStoreError(Exception):
    """The root; never raised itself."""

    cause = "error inside the broker"


class MisuseError(BrokerStoreError):
    """A caller inside the program broke a rule."""


class ConfigError(MisuseError):
    """A setting is unknown or has a wrong value."""

    cause = "wrong setting"

    def __init__(self, key: str, value: object, reason: str):
        self.key, self.value, self.reason = key, value, reason
        super().__init__(f"setting {key}={value!s}: {reason}")


class StoreClosedError(MisuseError):
    """The store is not open."""

    cause = "store not open"


class PeerError(BrokerStoreError):
    """Something from outside breaks the rules."""

    cause = "invalid request"


class ProtocolError(PeerError):
    """A frame cannot be parsed; the connection that sent it ends."""

    cause = "malformed frame"


class ForeignProtocolError(ProtocolError):
    """The first bytes of a connection are those of another protocol, which `cause` names."""

    def __init__(self, cause: str, advice: str):
        self.cause = cause
        super().__init__(advice)


class FieldError(PeerError):
    """A header field is missing (`value` None) or has a wrong value."""

    cause = "wrong field"

    def __init__(self, name: str, value: object, want: str):
        self.name, self.value, self.want = name, value, want
        super().__init__(f"field {name} is {'missing' if value is None else excerpt(value)}, want {want}")


class NameError_(PeerError):
    """The name of a topic or group is not allowed."""

    cause = "name not allowed"


class LookupNameError(NameError_):
    """What is looked up by a name of the broker's own (an index file, a job, a start) cannot be called so."""


class LimitError(PeerError):
    """One more of something would exceed its bound: there are `value` of at most `limit`."""

    cause = "limit reached"

    def __init__(self, what: str, value: int, limit: int):
        self.value, self.limit = value, limit
        super().__init__(f"{what}, of at most {limit}")


class FormatError(BrokerStoreError):
    """Bytes, or values to become bytes, are not what their format says.

    `offset` counts from the start of the buffer that was given; the caller turns it into a file and a place.
    """

    cause = "malformed data"

    def __init__(
        self, what: str, *, offset: int | None = None, expected: object = None, found: object = None
    ):
        self.what, self.offset, self.expected, self.found = what, offset, expected, found
        place = "" if offset is None else f" at {offset}"
        numbers = [
            f"{word} {value}"
            for word, value in (("expected", expected), ("found", found))
            if value is not None
        ]
        super().__init__(f"{what}{place}" + (": " if numbers else "") + ", ".join(numbers))


class StoreError(BrokerStoreError):
    """What is on disk, or the disk itself."""

    cause = "store failed"


class StoreLockedError(StoreError):
    """Another process, or another store of this process, holds the directory."""

    cause = "store in use"


class DamagedStoreError(StoreError):
    """Bytes that were once synced are not what they must be."""

    cause = "damaged store"

    def __init__(self, what: str, *, file: str, offset: int | None = None, advice: str = ""):
        self.what, self.file, self.offset, self.advice = what, file, offset, advice
        place = file if offset is None else f"{file} at {offset}"
        super().__init__(f"{place}: {what}" + (f". {advice}" if advice else ""))


class DiskFullError(StoreError):
    """No room for what should be written."""

    cause = "disk full"


class MapLimitError(StoreError):
    """The system allows this process no more maps of files that may be spent on new queues."""

    cause = "too many mapped files"


class OtherDiskError(StoreError):
    """A name on another file system was asked for: the file must be copied."""

    cause = "other file system"


class SyncError(StoreError):
    """A sync failed; what it covered is not acknowledged and nothing more is written."""

    cause = "sync failed"


class NotFoundError(BrokerStoreError):
    """What was asked for is not there."""

    cause = "not found"
