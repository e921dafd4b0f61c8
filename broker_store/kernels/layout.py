"""Layout: where the messages of a queue's units lie in the commit log, and which pages a read of them would
touch.

Nothing of the log is read: place and size in the unit are enough. Touched pages are marked in a map of the
log's pages, one byte for each: bit 0 is set for a page in memory, bit 1 for a page with a part of a message.
The pages of each file begin with a byte of their own, since a file need not be a whole number of pages.
"""

from __future__ import annotations

from numba import njit, types

from broker_store.kernels.memory import get, load64, load_be32, load_be64, load_u8, put, store64, store_u8
from broker_store.kernels.offsets import PRE_BLANK_SIZE, UNIT_BYTES, UNIT_SIZE_AT

PAGE_BITS = 12
IN_MEMORY = 1
TOUCHED = 2

# Words of the context.
Y_UNITS = 0  # address of the units, and how many there are
Y_COUNT = 1
Y_BEGIN = 2  # the part of the log that is mapped; messages outside of it are left out
Y_END = 3
Y_FILE_BYTES = 4
Y_FILE_PAGES = 5
Y_PAGES = 6  # address of the map of pages
# address of an int64 for each cell of [begin, end): bytes of messages in it; and the number of cells
Y_CELLS = 7
Y_CELL_COUNT = 8
Y_JUMPS = 9  # address of room for an int64 for each unit, and how many were written
Y_JUMP_COUNT = 10
Y_LAST_END = 11  # where the message before ended, -1 when not known
Y_MESSAGES = 12
Y_BYTES = 13
Y_COLD_MESSAGES = 14  # messages with a page that is not in memory
Y_COLD_BYTES = 15
Y_GONE = 16  # units that lead before the part (deleted files); those that lead after it are newer
Y_FILES = 17
Y_BLOCK_PAGES = 18  # pages that a read-ahead reads
Y_TOUCHED = 19  # pages
Y_TOUCHED_COLD = 20
Y_AHEAD = 21  # pages in touched blocks
Y_AHEAD_COLD = 22  # pages of blocks in which a touched page is not in memory
Y_WORDS = 23


@njit(types.int64(types.int64), cache=True, nogil=True)
def lay_units(context):
    """Scan the units; return how many, fewer than there are when a unit without data ended the queue."""
    units, count = get(context, Y_UNITS), get(context, Y_COUNT)
    begin, end = get(context, Y_BEGIN), get(context, Y_END)
    file_bytes, file_pages = get(context, Y_FILE_BYTES), get(context, Y_FILE_PAGES)
    pages = get(context, Y_PAGES)
    cells, cell_count = get(context, Y_CELLS), get(context, Y_CELL_COUNT)
    jumps, jump_count = get(context, Y_JUMPS), get(context, Y_JUMP_COUNT)
    last_end = get(context, Y_LAST_END)
    messages, total = get(context, Y_MESSAGES), get(context, Y_BYTES)
    cold_messages, cold_bytes = get(context, Y_COLD_MESSAGES), get(context, Y_COLD_BYTES)
    gone = get(context, Y_GONE)
    span = end - begin
    number = 0
    while number < count:
        unit = units + UNIT_BYTES * number
        log_offset = load_be64(unit)
        size = load_be32(unit + UNIT_SIZE_AT)
        if log_offset < 0 or size <= 0:
            break
        number += 1
        if log_offset < begin or log_offset + size > end:
            if log_offset < begin and not (log_offset == 0 and size == PRE_BLANK_SIZE):
                gone += 1
            last_end = -1
            continue
        if last_end >= 0:
            store64(jumps + 8 * jump_count, log_offset - last_end)
            jump_count += 1
        last_end = log_offset + size
        messages += 1
        total += size
        place = log_offset - begin
        in_file = place % file_bytes
        page = pages + place // file_bytes * file_pages + (in_file >> PAGE_BITS)
        last_page = page + ((in_file + size - 1) >> PAGE_BITS) - (in_file >> PAGE_BITS)
        is_cold = False
        while page <= last_page:
            state = load_u8(page)
            if state & IN_MEMORY == 0:
                is_cold = True
            store_u8(page, state | TOUCHED)
            page += 1
        if is_cold:
            cold_messages += 1
            cold_bytes += size
        cell = place * cell_count // span
        last_cell = (place + size - 1) * cell_count // span
        while cell < last_cell:
            edge = ((cell + 1) * span + cell_count - 1) // cell_count
            store64(cells + 8 * cell, load64(cells + 8 * cell) + edge - place)
            size -= edge - place
            place = edge
            cell += 1
        store64(cells + 8 * cell, load64(cells + 8 * cell) + size)
    put(context, Y_JUMP_COUNT, jump_count)
    put(context, Y_LAST_END, last_end)
    put(context, Y_MESSAGES, messages)
    put(context, Y_BYTES, total)
    put(context, Y_COLD_MESSAGES, cold_messages)
    put(context, Y_COLD_BYTES, cold_bytes)
    put(context, Y_GONE, gone)
    return number


@njit(types.int64(types.int64), cache=True, nogil=True)
def count_touched(context):
    """Count the touched pages and the blocks around them, block by block of each file, and clear the
    marks."""
    pages, files, file_pages = get(context, Y_PAGES), get(context, Y_FILES), get(context, Y_FILE_PAGES)
    block_pages = get(context, Y_BLOCK_PAGES)
    touched, touched_cold, ahead, ahead_cold = 0, 0, 0, 0
    for number in range(files):
        first = pages + number * file_pages
        page = 0
        while page < file_pages:
            stop = min(page + block_pages, file_pages)
            here, cold_here = 0, 0
            for at in range(first + page, first + stop):
                state = load_u8(at)
                if state & TOUCHED:
                    here += 1
                    if state & IN_MEMORY == 0:
                        cold_here += 1
                    store_u8(at, state & IN_MEMORY)
            touched += here
            touched_cold += cold_here
            if here > 0:
                ahead += stop - page
            if cold_here > 0:
                ahead_cold += stop - page
            page = stop
    put(context, Y_TOUCHED, touched)
    put(context, Y_TOUCHED_COLD, touched_cold)
    put(context, Y_AHEAD, ahead)
    put(context, Y_AHEAD_COLD, ahead_cold)
    return touched
