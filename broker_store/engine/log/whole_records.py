"""Whole records of the log, also after bad bytes: where the next one begins, and all from an offset on.

A scan ends at the first bad record. What lies after it is not part of the log any more, and may still hold
whole messages: after a power cut, pages reached the disk in any order. A start reports them before it cuts
them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from broker_store.engine.disk.mapped_file import MappedFile
from broker_store.engine.disk.region import Region
from broker_store.engine.rows import Words
from broker_store.errors import FormatError
from broker_store.formats import record
from broker_store.formats.record import StoredMessage
from broker_store.kernels import context as c
from broker_store.kernels.scan import data_end, scan

_SEARCH_BYTES = 1 << 20  # searched at a time for the begin of a record
_MAGIC = re.compile(
    b"|".join(
        re.escape(magic.to_bytes(4, "big", signed=True)) for magic in (record.MAGIC_V1, record.MAGIC_V2)
    ),
    re.DOTALL,
)
_MAGIC_BYTES = 4
_MAGIC_AT = record.HEAD.offset["magic"]

WordsOf = Callable[[MappedFile], Words]  # the words with which a scan of the file begins


def data_end_from(region: Region, at: int) -> int:
    """Return the offset after the last byte from `at` on that is not zero, `at` when there is none."""
    return data_end(region.address, at, max(at, region.data_end()))


def is_whole(words: Words, at: int) -> bool:
    """Return whether a good record begins at byte `at` of the file that `words` scan."""
    words[c.S_AT], words[c.S_SLICE_END], words[c.S_COUNT] = at, at + 1, 0
    scan(words.address)
    return words[c.S_COUNT] == 1


def find_record(file: MappedFile, words: Words, begin: int) -> int | None:
    """Return where the first good record begins from byte `begin` of a file on; None without one."""
    return next((place for place in _magic_places(file, begin) if is_whole(words, place)), None)


def _magic_places(file: MappedFile, begin: int) -> Iterator[int]:
    """Yield each place from byte `begin` of a file on where a record would begin by the magic that follows
    its length, ascending."""
    region = file.map()
    end = data_end_from(region, begin)
    for low in range(begin, end, _SEARCH_BYTES):
        raw = region.read(low, min(_SEARCH_BYTES + _MAGIC_BYTES - 1, file.size - low))
        for match in _MAGIC.finditer(raw):
            if (place := low + match.start() - _MAGIC_AT) >= begin:
                yield place


def whole_records(files: Sequence[MappedFile], words_of: WordsOf, begin: int) -> Iterator[StoredMessage]:
    """Yield each good record that begins at log offset `begin` or later, in order, with any bytes between
    them. Each byte is searched once."""
    for file in files:
        if file.end <= begin:
            continue
        words, following = words_of(file), max(begin - file.base, 0)
        for place in _magic_places(file, following):
            if place < following or not is_whole(words, place):
                continue  # in the body of a record, or of none
            size = record.read_head(file.map().read(place, record.BLANK_BYTES)).total_size
            try:
                yield record.decode(
                    file.map().read(place, size), log_offset=file.base + place, check_crc=False
                )
            except FormatError:  # such as a topic that is no UTF-8, which is a bad record to dispatch too
                pass
            following = place + size
