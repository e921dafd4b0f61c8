"""Where the fields of queue units and of index files are, from the tables in formats/.

For records see record_head.py.
"""

from __future__ import annotations

from broker_store.formats import index_file, queue_unit

UNIT_BYTES = queue_unit.SIZE
UNIT_SIZE_AT = queue_unit.LAYOUT.offset["size"]
UNIT_TAGS_AT = queue_unit.LAYOUT.offset["tags_code"]
PRE_BLANK_SIZE = queue_unit.PRE_BLANK_SIZE

HEADER_BYTES = index_file.HEADER.size
HEADER_END_TIME_AT = index_file.HEADER.offset["end_timestamp"]
HEADER_BEGIN_OFFSET_AT = index_file.HEADER.offset["begin_offset"]
HEADER_END_OFFSET_AT = index_file.HEADER.offset["end_offset"]
HEADER_SLOTS_USED_AT = index_file.HEADER.offset["slots_used"]
HEADER_COUNT_AT = index_file.HEADER.offset["count"]
SLOT_BYTES = index_file.SLOT.size
ENTRY_BYTES = index_file.ENTRY.size
ENTRY_LOG_OFFSET_AT = index_file.ENTRY.offset["log_offset"]
ENTRY_SECONDS_AT = index_file.ENTRY.offset["seconds"]
ENTRY_PREVIOUS_AT = index_file.ENTRY.offset["previous"]
