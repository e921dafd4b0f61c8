"""The bytes of a range of a file as a page shows them: lines of runs, and fields with addresses."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlencode

from django.urls import reverse

from broker_store.facts.bytes.field import Field
from broker_store.facts.bytes.pieces import FileBytes, Jump, Piece, RecordBytes, Tone
from broker_store.facts.pointers import Pointer
from broker_store.units import fields_of
from mqadmin.templatetags.units import moment_text

LINE_BYTES = 16
SHOWN_BYTES = 4 << 10  # that a page shows at once; REST and the command give more
COLOURS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownField(Field):
    """A field with the id, colour and address that its row and its bytes share."""

    id: str  # of one page
    colour: int  # below COLOURS
    href: str  # "": it is no pointer
    start: int  # bytes from the beginning of its piece


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPiece:
    """A piece with its rows."""

    title: str
    at: int
    sentence: str
    tone: Tone
    fields: list[ShownField]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownJump(Jump):
    """A jump with its address."""

    href: str  # "": there is no such place


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The bytes of one field in one line."""

    field: ShownField | None  # None: they belong to no field
    is_first: bool  # of the runs of the field
    hex: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """LINE_BYTES bytes."""

    at: str
    runs: list[Run]
    pad: str  # instead of the hex of bytes that the last line does not have


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownBytes:
    """The data of the templates hex.html and fields.html."""

    stretch: FileBytes | RecordBytes
    pieces: list[ShownPiece]
    lines: list[Line]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFileBytes(ShownBytes):
    """The data of the page of the byte viewer with bytes."""

    jumps: list[ShownJump]
    before: str  # an address, "" at the beginning
    after: str  # an address, "" at the end
    measured: str
    says: Piece | None  # the first piece, if its sentence has more than its fields
    message_at: int | None  # the log offset of the first piece's message


def shown(stretch: FileBytes) -> ShownFileBytes:
    """Return the data of the byte viewer's page for a range of a file."""
    first = stretch.pieces[0]
    return ShownFileBytes(
        **fields_of(shown_bytes(stretch)),
        jumps=[ShownJump(**fields_of(jump), href=address(jump.pointer)) for jump in stretch.jumps],
        before=address(stretch.before),
        after=address(stretch.after),
        measured=f"Read by position at {moment_text(stretch.at_ms)} UTC; the positions of the store were "
        f"{stretch.source}.",
        says=first if first.sentence and (first.tone or not first.fields) else None,
        message_at=first.at if first.what == "record" and first.tone != "bad" else None,
    )


def shown_bytes(stretch: FileBytes | RecordBytes) -> ShownBytes:
    """Return the bytes of a stretch in lines, and its fields in rows."""
    pieces = _shown_pieces(stretch.pieces)
    return ShownBytes(stretch=stretch, pieces=pieces, lines=_lines(stretch, pieces))


def _shown_pieces(pieces: list[Piece]) -> list[ShownPiece]:
    found: list[ShownPiece] = []
    number = 0
    for piece in pieces:
        fields = []
        for field in piece.fields:
            # An id for each field of the page, which its bytes and its row share
            id = f"{field.name}-{number}" if found else field.name
            fields.append(_shown_field(field, piece, id, number % COLOURS))
            number += 1
        found.append(
            ShownPiece(
                title=piece.title, at=piece.at, sentence=piece.sentence, tone=piece.tone, fields=fields
            )
        )
    return found


def _shown_field(field: Field, piece: Piece, id: str, colour: int) -> ShownField:
    return ShownField(
        **fields_of(field),
        id=id,
        colour=colour,
        href=address(field.pointer),
        start=field.at - piece.at,
    )


def address(pointer: Pointer | None) -> str:
    """Return the address of the page that shows the bytes of a place; "" for none."""
    return "" if pointer is None else f"{reverse('bytes')}?{urlencode(fields_of(pointer))}"


def _lines(stretch: FileBytes | RecordBytes, pieces: list[ShownPiece]) -> list[Line]:
    data = bytes.fromhex(stretch.hex)
    width = len(f"{stretch.at + len(data):,}")
    owners: list[ShownField | None] = [None] * len(data)
    for piece in pieces:
        for field in piece.fields:
            first, end = max(field.at - stretch.at, 0), min(field.at + field.length - stretch.at, len(data))
            if end > first:
                owners[first:end] = [field] * (end - first)
    found: list[Line] = []
    begun: set[str] = set()
    for at in range(0, len(data), LINE_BYTES):
        end = min(at + LINE_BYTES, len(data))
        found.append(
            Line(
                at=f"{stretch.at + at:>{width},}",
                runs=_runs(data, owners, at, end, begun),
                pad=" " * (3 * (at + LINE_BYTES - end)),
            )
        )
    return found


def _runs(data: bytes, owners: list[ShownField | None], start: int, end: int, begun: set[str]) -> list[Run]:
    """Return the runs of one line; `begun` has the ids of the fields that earlier runs belong to."""
    runs: list[Run] = []
    while start < end:
        field, stop = owners[start], start + 1
        while stop < end and owners[stop] is field:
            stop += 1
        part = data[start:stop]
        is_first = field is not None and field.id not in begun
        if field is not None:
            begun.add(field.id)
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "·" for byte in part)
        runs.append(Run(field=field, is_first=is_first, hex=part.hex(" "), text=text))
        start = stop
    return runs
