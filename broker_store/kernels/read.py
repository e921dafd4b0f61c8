"""Read: follow the units of a queue file and copy the records they name, back to back, as a pull answer carries them."""

from __future__ import annotations

from numba import njit, types

from broker_store.kernels import context as c
from broker_store.kernels.memory import copy_memory, get, inlined, load_be32, load_be64, put, store64

_UNIT_BYTES = 20


@inlined
def _wanted(tags_code, tags, tag_count):
    """By the low 32 bits, as Apache compares."""
    low = tags_code & 0xFFFFFFFF
    for number in range(tag_count):
        if get(tags, number) & 0xFFFFFFFF == low:
            return True
    return False


@njit(types.int64(types.int64), cache=True)
def read_units(context):
    """Fill R_TARGET from the hot part of the log; READ_* says why it stopped. R_OFFSET is then the next unit to look at."""
    units = get(context, c.R_UNITS_ADDRESS)
    first = get(context, c.R_UNITS_FIRST)
    end = get(context, c.R_UNITS_END)
    offset = get(context, c.R_OFFSET)
    max_count = get(context, c.R_MAX_COUNT)
    max_bytes = get(context, c.R_MAX_BYTES)
    tags = get(context, c.R_TAGS)
    tag_count = get(context, c.R_TAG_COUNT)
    files = get(context, c.R_LOG_FILES)
    log_first = get(context, c.R_LOG_FIRST)
    file_size = get(context, c.R_LOG_FILE_SIZE)
    log_from = get(context, c.R_LOG_FROM)
    log_to = get(context, c.R_LOG_TO)
    target = get(context, c.R_TARGET)
    room = get(context, c.R_TARGET_ROOM)
    sizes = get(context, c.R_SIZES)
    looked_to = offset + get(context, c.R_MAX_UNITS)
    if looked_to > end:
        looked_to = end
    count, used = 0, 0
    stopped = c.READ_DONE
    while offset < looked_to:
        unit = units + (offset - first) * _UNIT_BYTES
        log_offset = load_be64(unit)
        size = load_be32(unit + 8)
        if count >= max_count or (count > 0 and used + size > max_bytes):
            stopped = c.READ_FULL
            break
        if tag_count > 0 and not _wanted(load_be64(unit + 12), tags, tag_count):
            offset += 1
            continue
        if log_offset < log_first:
            stopped = c.READ_GONE
            break
        if size < 91 or log_offset + size > log_to or size > room:
            stopped = c.READ_BAD_UNIT
            break
        if used + size > room:
            stopped = c.READ_FULL
            break
        if log_offset < log_from:
            stopped = c.READ_COLD
            break
        number = (log_offset - log_first) // file_size
        address = get(files, number)
        place = (log_offset - log_first) - number * file_size
        if address == 0 or place + size > file_size:
            stopped = c.READ_COLD
            break
        copy_memory(target + used, address + place, size)
        store64(sizes + 8 * count, size)
        used += size
        count += 1
        offset += 1
    put(context, c.R_OFFSET, offset)
    put(context, c.R_COUNT, count)
    put(context, c.R_BYTES, used)
    return stopped
