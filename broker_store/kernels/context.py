"""The meaning of each word of the int64 arrays that Python and the kernels share.

One `Context` array for the writer (append and dispatch), one row for each queue and each topic, one
descriptor for each message. Addresses point into memory that the engine holds. Offsets named LOG_* are
absolute in the commit log, those named *_AT are relative to a file. Words marked "out" are written by
kernels, all others by Python.
"""

from __future__ import annotations

# The writer's context -----------------------------------------------------------------------------
LOG_ADDRESS = 0  # of the file that is written
LOG_BASE = 1  # log offset of its first byte
LOG_SIZE = 2
LOG_ALLOCATED = 3  # bytes of it that have disk blocks; nothing is written beyond
LOG_AT = 4  # write position in it
MAX_RECORD = 5  # bytes; dispatch stops at a larger record (BAD_RECORD)
DESCRIPTORS = 6  # address of the D_* rows, one for each message of the group
QUEUED_KEYS = 7  # upper bound of the index entries of records that are appended and not yet dispatched
KEY_ROOM = 8  # index entries with allocated room, those of QUEUED_KEYS included
MAX_BODY = 9  # bytes; a larger body is refused
STORE_HOST = 10  # address of the host tuple that a message without one gets
LAYOUT = 11  # address of the M_* words
ROW_HOSTS = 12  # address of HOST_ROOM bytes for each row, for IPv6 hosts
STORED_COUNT = 13  # running total of records appended in this run
STORED_BYTES = 14
SYNC_FIRST = 15  # 1: records are confirmed and dispatched only when they are on the disk (SYNC_FLUSH)

DISPATCH_ADDRESS = 16  # of the log file that is dispatched
DISPATCH_BASE = 17
DISPATCH_SIZE = 18
DISPATCH_AT = 19
CONFIRMED = 20  # log offset up to which records may be read
TAGS_CODE_AT = 21  # log offset of the one record whose delivery time Python has computed, -1 none
TAGS_CODE = 22
DISPATCHED_COUNT = 23  # running total of records
LAST_DISPATCHED_MS = 24  # store time of the last record dispatched
TOPIC_TABLE = 25  # address of the open-addressing table: row addresses, 0 is free
TOPIC_MASK = 26  # its length - 1
ARRIVALS = 27  # address of room for queue row addresses: queues with a waiting pull that got messages
ARRIVAL_COUNT = 28
ARRIVAL_ROOM = 29
STOPPED_AT = 30  # out: log offset of the record at which a dispatch stopped
STOPPED_QUEUE = 31  # out: address of the queue row, 0 none
DELAYS = 32  # address of the delay levels' times in ms, level 1 first
DELAY_COUNT = 33

INDEX_ENABLED = 36
INDEX_ADDRESS = 37  # of the file that is filled, 0 none
INDEX_SLOTS = 38
INDEX_LIMIT = 39  # maxIndexNum
INDEX_COUNT = 40  # next entry number, starts at 1
INDEX_ALLOCATED = 41  # entry numbers below have disk blocks
INDEX_BEGIN_MS = 42
INDEX_END_MS = 43
INDEX_BEGIN_OFFSET = 44
INDEX_END_OFFSET = 45
INDEX_SLOTS_USED = 46
INDEX_KEYS_DONE = 47  # entries of the current record that are already in the file before

# Set for each group of messages.
NOW_MS = 48  # store time of the group
DESCRIPTOR_COUNT = 49
DESCRIPTOR_DONE = 50  # out: rows appended so far
KEY_ROOM_GRANTED = 51  # number of the row whose index entries Python has counted exactly, -1 none
DESCRIBED = 52  # out: rows made from messages so far
REFUSED_ROWS = 53  # out: rows with a status other than D_OK
# 1: each body is a batch (docs/spec/store-format.md section 2.6); 2: the group is not messages but records
# that waited (kernels/waited.py)
GROUP_BATCH = 54
MESSAGES = 55  # address of DESCRIPTOR_COUNT addresses of Message objects

# The log's files, for readers; set whenever a file is created, removed, mapped or unmapped.
LOG_MAPS = 56  # address of the files' map addresses, 0 where a file is not mapped
LOG_RESIDENCY = 57  # address of the addresses of their residency bytes (kernels/residency.py)
LOG_FIRST = 58  # log offset of the first file
LOG_FILE_BYTES = 59

# Records that waited and are appended to their real queue; set for each group of them.
WAITED_AT = 60  # address of the record that is described next
WAITED_END = 61
WAITED_TOPIC = 62  # address of the row of the topic in which they waited
WAITED_TIMES = 63  # address of the time at which each was put on the timer wheel, 0 for none
WAITED_ROOM = 64  # address of room for properties that are written with times

RECORD_CRC = 65  # 1: each record's properties end with the CRC of the record; set once
KEEPS_UNITS = 66  # 1: dispatch stops where the queue's unit of that number names another record
COPIES_LOG = 67  # 1: the log is copied from a master; dispatch stops where a queue begins again

CONTEXT_WORDS = 72

# Where the parts of a Message object are, measured once (engine/object_layout) ---------------------
M_TOPIC = 0  # byte offset of the field's object address, and so on
M_QUEUE_ID = 1
M_BODY = 2
M_PROPERTIES = 3
M_FLAG = 4
M_SYS_FLAG = 5
M_BORN_TIMESTAMP = 6
M_BORN_HOST = 7
M_STORE_HOST = 8
M_RECONSUME_TIMES = 9
M_PREPARED_OFFSET = 10
M_STR_TYPE = 11  # addresses of types and of None
M_BYTES_TYPE = 12
M_INT_TYPE = 13
M_TUPLE_TYPE = 14
M_NONE = 15
M_STR_DATA = 16  # byte offset of the characters of an ASCII str
M_BYTES_DATA = 17
# 1: an int's size word is count << 3 | sign (CPython 3.12 and later), 0: the count, negative for negatives
M_INT_TAGGED = 18
M_WORDS = 19
HOST_ROOM = 40  # bytes for each row: two of 16 and a port

# A queue's row ------------------------------------------------------------------------------------
Q_ID = 0
Q_NEXT = 1  # queue offset the next append gets
Q_APPEND_LIMIT = 2  # units below this have disk blocks
Q_DISPATCHED = 3  # next unit to be written: what readers see as the maximum
Q_FILE_ADDRESS = 4  # of the queue file that takes the next unit, 0 none
Q_FILE_FIRST = 5  # number of its first unit
Q_FILE_END = 6  # number after its last unit
Q_WATCHED = 7  # 1: a pull waits for messages of this queue
Q_ARRIVED = 8  # 1: the queue is in ARRIVALS
Q_LOG_END = 9  # log offset after the last record with a unit
Q_LAST_MS = 10  # store time of that record
Q_TOPIC = 11  # address of the topic's row
Q_NUMBER = 12  # the row's number
Q_BYTES = 13  # running total of record bytes dispatched in this run
Q_MINIMUM = 14  # first unit that may be read
Q_HOT = 15  # units from here on were written in this run
# The queue file that was read last, other than the end of the one being written; set by
# ConsumeQueue.enter_for_reading.
Q_READ_ADDRESS = 16  # 0 none
Q_READ_FIRST = 17
Q_READ_END = 18
Q_READ_RESIDENCY = 19  # address of its residency bytes
Q_AGREED = 20  # in recovery: number after the last unit that was compared and agreed, 0 none
Q_FLUSHED = 21  # units before it are on the disk
Q_LEFT = 22  # 1: after a crash, neither bytes after the units nor file names are known to be on the disk
Q_RECORDED = 23  # the next unit according to the record of ends (engine/start/ends.py)
Q_WORDS = 24

# A topic's row ------------------------------------------------------------------------------------
T_HASH = 0  # FNV-1a of the name
T_NAME = 1  # address
T_LENGTH = 2
T_KEY_HASH = 3  # Java hash of "<topic>#", to be continued with a key
T_QUEUES = 4  # address of queue row addresses by queue id, 0 is unknown
T_QUEUE_COUNT = 5
T_DELAYED = 6  # 1: units of this topic hold a delivery time in place of a tags code
# records below this log offset belong to a deleted topic of the same name: they get no units
T_DELETED_BEFORE = 7
T_TAKES = 8  # 1: the topic's name is valid for messages
T_IS_REAL = 9  # 1: the topic may also take messages that waited
T_WORDS = 10

# A message to append ------------------------------------------------------------------------------
D_QUEUE = 0  # address of the queue's row
D_BODY = 1
D_BODY_LENGTH = 2
D_PROPERTIES = 3
D_PROPERTIES_LENGTH = 4
D_FLAG = 5
D_SYS_FLAG = 6
D_BORN_MS = 7
D_BORN_HOST = 8  # IPv4: address and port as the big-endian int64; IPv6: address of 20 bytes
D_STORE_HOST = 9
D_RECONSUME_TIMES = 10
D_PREPARED_OFFSET = 11
D_BATCH = 12  # 1: the body is a chain of messages (docs/spec/store-format.md section 2.6)
D_LOG_OFFSET = 13  # out, of the first record
D_QUEUE_OFFSET = 14  # out, of the first record
D_SIZE = 15  # out, bytes of all records
D_COUNT = 16  # out, records
D_STATUS = 17  # out, D_OK or why it was refused
D_WORDS = 18

D_OK = 0
D_BAD_BATCH = 1
D_BAD_PROPERTIES = 2
D_PROPERTIES_TOO_LONG = 3
D_TOO_LARGE = 4
D_ILLEGAL = 5
D_NO_PLACE = 6  # the real topic or queue of a record that waited is missing or not allowed

# Stop codes ---------------------------------------------------------------------------------------
DONE = 0
LOG_FILE_FULL = 1  # the rest of the file is too short for the record
LOG_NOT_ALLOCATED = 2
QUEUE_NOT_ALLOCATED = 3
KEYS_NOT_ALLOCATED = 4
QUEUE_NOT_OPEN = 5  # the message's queue is not known, or its topic not validated
NOT_PLAIN = 6  # a field of the message has a type that kernels do not read

LOG_FILE_END = 10  # a blank record: continue in the next file
UNKNOWN_QUEUE = 11
QUEUE_FILE_END = 12
QUEUE_HOLE = 13  # the record's queue offset lies after the next unit
INDEX_FULL = 14
DELAYED_RECORD = 15  # Python has to compute its delivery time
BAD_RECORD = 16
EXHAUSTED = 17  # the requested slice is done
DIFFERS = 18  # queues or index do not hold the record
# The record's unit names a later place of the log: the topic may have been deleted and created again
LATER_UNIT = 19
OTHER_UNIT = 20  # see KEEPS_UNITS
QUEUE_AGAIN = 21  # see COPIES_LOG

# A scan's context ---------------------------------------------------------------------------------
S_ADDRESS = 0  # of the log file
S_BASE = 1
S_SIZE = 2
S_AT = 3  # in and out: next position
S_SLICE_END = 4  # stop at or after this position
S_CHECK_CRC = 5
S_MAX_RECORD = 6
S_STRICT_ABOVE_MS = 7  # records of a later store time are refused when their properties hold a NUL
S_COUNT = 8  # out: good records, running
S_LAST_MS = 9  # out: store time of the last good record
S_LAST_OFFSET = 10  # out: log offset of the last good record
S_REASON = 11  # out: REASON_* of the record at S_AT
S_AGREEMENT = 12  # address of the words below, 0 when nothing is compared (any more)
S_TIMES = 14  # address of the words for steps back, 0 when they are not recorded
S_WORDS = 16

# Records with a store time below that of the record before, as a scan finds them (engine/log/store_times.py).
T_STEP_LAST_MS = 0  # in and out: store time of the record before, 0 for none
T_STEP_COUNT = 1  # out: steps found, running; the newest T_STEP_ROOM of them are kept
T_STEP_ROOM = 2
T_STEPS = 3  # address of T_STEP_ROOM times (log offset, time of the record before, own time)
T_STEP_WORDS = 4

REASON_NOT_A_RECORD = 1
REASON_LENGTH = 2
REASON_PLACE = 3
REASON_BODY_CRC = 4
REASON_SYNTAX = 5
REASON_RECORD_CRC = 6

# Agreement: whether queues and index hold what the log says ---------------------------------------
A_WRITER = 0  # address of the writer's context: its table of topics and its tags code
A_END = 1  # out: log offset of the first record that is missing or differs, -1 while there is none
A_QUEUE = 2  # out: address of the queue row at QUEUE_FILE_END
A_UNIT = 3  # out: the unit whose file is needed
A_INDEX_FROM = 4  # records below this log offset have their entries, as is already known
A_ENTRIES = 5  # address of entry 0 of the index file
A_ENTRY_AT = 6  # in and out: number of the entry that is compared next
A_ENTRY_END = 7  # the file's count
A_KEYS_SEEN = 8  # entries of the current record that were found in the file before
A_BEGIN_MS = 9  # of the file's header
A_BEGIN_OFFSET = 10
A_BEFORE_MS = 11  # end time of the file before, from which the first entry counts its seconds
A_LAST_MS = 12  # out: store time of the last record whose entries were compared
A_LAST_OFFSET = 13  # out: its log offset
# 1: stop with UNKNOWN_QUEUE at a record of a topic that has no queue, since it may have been deleted
A_STOPS_WITHOUT_QUEUE = 14
# 1: a record may lack the entry of its tag, as Apache's older brokers write the index; 2: and no file follows
A_TAGS = 15
A_WORDS = 16

# A read's context ---------------------------------------------------------------------------------
R_WRITER = 0  # address of the writer's context
R_HOT_FROM = 1  # the log from here on is in memory
R_ROUND = 2  # a block of residency bytes counts only if it was asked in this round
R_MAX_UNITS = 3  # units that a read may pass
R_MAX_COUNT = 4  # records of an answer, at most
R_MAX_RECORD = 5  # bytes
R_DISTANT = 6  # bytes: records further before the log's end have limits of their own
R_NEAR_COUNT = 7
R_NEAR_BYTES = 8
R_DISTANT_COUNT = 9
R_DISTANT_BYTES = 10
R_RUNS = 11  # address of pairs (address, bytes): what the plan will copy
R_RUN_COUNT = 12  # out
R_COUNT = 13  # out: records
R_BYTES = 14  # out: of all of them
R_OFFSET = 15  # out: next unit to read
# out, of *_ASK and *_UNMAPPED: the number of a log file, ASK_UNITS for the queue's file, a position in
# K_FILES, or the address of a queue's row
R_ASK_FILE = 16
R_ASK_PLACE = 17  # out: position in that file
R_ASK_BYTES = 18  # out
R_LOOKUP = 19  # address of the words of a key lookup
# A read whose records are judged by their properties; R_JUDGE is 0 for all others.
R_JUDGE = 20  # JUDGE_*
R_VERDICT = 21  # of Python on the record of the unit at R_OFFSET: 0 no, 1 yes, VERDICT_NONE not asked
R_BUDGET = 22  # in and out: steps of work that are left; the read ends after a unit that uses them up
R_MOST = 23  # in and out: records that the answer may have, as the first unit limits them; 0 not known yet
R_MOST_BYTES = 24
R_PROPERTIES = 25  # out, of READ_JUDGE: the properties of the record that Python has to judge
R_PROPERTIES_BYTES = 26  # out
R_PROGRAM = 27  # address of the filter's program (formats/filter_program.py), 0 without one
R_WORDS = 32

JUDGE_FIRST = 1
JUDGE_CONTINUED = 2  # the read goes on at R_OFFSET with the records that it has
VERDICT_NONE = -1
# Steps of R_BUDGET for a unit; each 8 bytes of its record's properties are one more
STEPS_PER_UNIT = 24
# For each 256 bytes of properties a filter's program takes its steps once more: it may search them
LONG_PROPERTIES_SHIFT = 8

ASK_UNITS = -1

READ_DONE = 0  # the end of the queue, or R_MAX_UNITS
READ_FULL = 1
READ_COLD = 2  # the record of the unit at R_OFFSET would cross the end of its file
READ_GONE = 3  # its record is below the log's first byte
READ_BAD_UNIT = 4
READ_OUTSIDE = 5  # the queue has no such unit
READ_DAMAGED = 6  # its record is not as it was stored
READ_UNENTERED = 7  # no file was entered for reading that holds the unit
READ_UNMAPPED = 8  # the log file that is needed is not mapped
READ_ASK = 9  # pages are needed that are not known to be in memory
READ_JUDGE = 10  # Python has to judge the record of the unit at R_OFFSET

# A key lookup's context ---------------------------------------------------------------------------
K_FILES = 0  # address of the index files' map addresses, newest first
K_FILE_COUNT = 1  # -1: index files were created, removed or unmapped since they were entered here
K_SLOTS = 2
K_FOUND = 3  # address of room for log offsets
K_FOUND_ROOM = 4
K_TOPIC_LENGTH = 5
K_KEY_LENGTH = 6
K_ENTRIES = 7  # entry numbers of a file are below this, whatever its header says
K_RESIDENCY = 8  # address of the addresses of the residency bytes of K_FILES (kernels/residency.py)
K_WORDS = 9

# What a lookup returns in place of a result.
LOOKUP_DONE = 0
LOOKUP_UNENTERED = 1  # the files must be entered in K_FILES first
LOOKUP_UNMAPPED = 2  # as READ_UNMAPPED
LOOKUP_ASK = 3  # as READ_ASK
LOOKUP_DOUBTFUL = 4  # a record is damaged, or the record that contradicts it must be searched by position
LOOKUP_ASK_INDEX = 5  # as LOOKUP_ASK, for pages of an index file
LOOKUP_UNENTERED_UNITS = 6  # the file with unit R_ASK_PLACE must be entered for reading
LOOKUP_ASK_UNITS = 7  # as LOOKUP_ASK, for pages of that file
