"""A command: one request or answer of the remoting protocol, independent of its encoding
(docs/spec/remoting.md section 1)."""

from __future__ import annotations

from broker_store.excerpts import excerpt

RESPONSE = 1
ONEWAY = 2
JSON = 0
ROCKETMQ = 1

# The ordinal of V5_3_3 in Apache's MQVersion. mqadmin prints its name and clients switch features on by it.
VERSION = 479
# From one to the other Apache numbers each release, with the snapshot before it. Those of 3 have gaps.
_V4_0_0_SNAPSHOT, _V5_9_9 = 212, 611
# Older clients do not know the field maxReconsumeTimes (V3_4_9).
VERSION_WITH_MAX_TRIES = 121

# Position = the byte of the ROCKETMQ header. Clients fail on a name they do not know, so no other may be
# sent.
LANGUAGES = (
    "JAVA",
    "CPP",
    "DOTNET",
    "PYTHON",
    "DELPHI",
    "ERLANG",
    "RUBY",
    "OTHER",
    "HTTP",
    "GO",
    "PHP",
    "OMS",
    "RUST",
    "NODE_JS",
)
LANGUAGE = "PYTHON"
# A remark is a sentence for a person who reads a client's log.
MAX_REMARK_CHARACTERS = 200


def version_name(number: int) -> str:
    """Return the name that Apache's MQVersion has for a version; `version N` for one before 4.0.0, or above
    its last."""
    if not _V4_0_0_SNAPSHOT <= number <= _V5_9_9:
        return f"version {number}"
    release, is_release = divmod(number - _V4_0_0_SNAPSHOT, 2)
    name = f"V{4 + release // 100}_{release // 10 % 10}_{release % 10}"
    return name if is_release else f"{name}_SNAPSHOT"


class Command:
    """The content of a frame."""

    __slots__ = ("code", "language", "version", "opaque", "flag", "remark", "fields", "body", "serialization")

    def __init__(
        self,
        code: int,
        language: str = LANGUAGE,
        version: int = VERSION,
        opaque: int = 0,
        flag: int = 0,
        remark: str | None = None,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
        serialization: int = JSON,
    ):
        self.code = code
        self.language = language
        self.version = version
        self.opaque = opaque
        self.flag = flag
        self.remark = remark
        self.fields = fields
        self.body = body
        self.serialization = serialization

    @classmethod
    def request(
        cls,
        code: int,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        opaque: int = 0,
        oneway: bool = False,
        version: int = VERSION,
        language: str = LANGUAGE,
        serialization: int = JSON,
    ) -> Command:
        """Return a request. A oneway one must not be answered."""
        return cls(
            code, language, version, opaque, ONEWAY if oneway else 0, None, fields, body, serialization
        )

    def answer(
        self,
        code: int = 0,
        remark: str | None = None,
        fields: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> Command:
        """Return the answer to this request, with the same opaque and serialisation. A long remark is cut."""
        if remark is not None:
            remark = remark[:MAX_REMARK_CHARACTERS]
        return Command(
            code, LANGUAGE, VERSION, self.opaque, RESPONSE, remark, fields, body, self.serialization
        )

    @property
    def is_response(self) -> bool:
        return self.flag & RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        return self.flag & ONEWAY != 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Command):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # its parts may change, so it is no key

    def __repr__(self) -> str:
        kind = "answer" if self.is_response else "oneway" if self.is_oneway else "request"
        remark = f" {excerpt(self.remark, 80)}" if self.remark else ""
        return (
            f"<{kind} {int(self.code)} #{self.opaque}{remark} {excerpt(self.fields, 200)} {len(self.body)} B>"
        )
