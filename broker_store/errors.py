"""One tree of errors, divided by whose fault it is and what to do next.

    BrokerStoreError
    ├── MisuseError             a caller in the program broke a rule: fix the call
    │   ├── ConfigError         a setting is unknown or wrong: fix the setting
    │   └── StoreClosedError    the store is not open (any more)
    ├── PeerError               bytes or names from outside break the rules: refuse, change nothing
    │   ├── ProtocolError       a frame cannot be parsed: close that connection
    │   ├── FieldError          one header field is missing or wrong: answer with the error
    │   ├── LimitError          the allowed number of something is reached
    │   └── NameError_          the name of a topic or group is not allowed
    │       └── LookupNameError the name of a file, job or start in a lookup cannot exist
    ├── FormatError             bytes or values do not match their format: the caller that read them knows
    │                           their source
    ├── StoreError              what is on disk, or the disk itself
    │   ├── StoreLockedError    another process holds the store
    │   ├── DamagedStoreError   bytes that were once synced are not what they must be
    │   ├── ForeignStoreError   the directory is no store that may be opened: use another one
    │   ├── DiskFullError       no room: refused, until there is room again
    │   ├── NoBufferError       all buffers of the transient store pool are in use
    │   ├── OtherDiskError      a file cannot be renamed onto another file system: copy it
    │   └── SyncError           a sync failed: final, the store becomes read-only
    └── NotFoundError           the requested thing does not exist

The message of an error has the numbers that are needed (file, offset, expected, found) and states what to do.
`cause` of a class is the word under which refusals are counted and that users read; the class name is for
programs and logs.
"""

from __future__ import annotations

from broker_store.excerpts import excerpt


class BrokerStoreError(Exception):
    """The root of the tree; never raised itself."""

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
    """Bytes or names from outside break the rules."""

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

    def __init__(self, name: str, value: object, expected: str):
        self.name, self.value, self.expected = name, value, expected
        super().__init__(
            f"field {name} is {'missing' if value is None else excerpt(value)}, expected {expected}"
        )


class NameError_(PeerError):
    """The name of a topic or group is not allowed."""

    cause = "name not allowed"


class LookupNameError(NameError_):
    """A name in a lookup (of an index file, a job, a start) is none that the broker gives."""


class LimitError(PeerError):
    """One more of something would exceed its bound: there are `value` of at most `limit`."""

    cause = "limit reached"

    def __init__(self, what: str, value: int, limit: int):
        self.value, self.limit = value, limit
        super().__init__(f"{what}, of at most {limit}")


class FormatError(BrokerStoreError):
    """Bytes, or values to be written as bytes, do not match their format.

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


class ForeignStoreError(StoreError):
    """A directory is no store that this program may open: a backup, or what a newer version wrote."""

    cause = "not a store to open"


class DiskFullError(StoreError):
    """The disk has no room for a write."""

    cause = "disk full"


class MapLimitError(StoreError):
    """No more mapped files are available for new queues: the system limits them for each process."""

    cause = "too many mapped files"


class NoBufferError(StoreError):
    """All buffers of the transient store pool are in use."""

    cause = "no free buffer"


class OtherDiskError(StoreError):
    """A file cannot be renamed to another file system: it must be copied."""

    cause = "other file system"


class SyncError(StoreError):
    """A sync failed; what it covered is not acknowledged and nothing more is written."""

    cause = "sync failed"


class NotFoundError(BrokerStoreError):
    """The requested thing does not exist."""

    cause = "not found"
