"""The head of an HTTP/2 frame (RFC 9113), and the numbers that stand in frames.

| 3 bytes length of the payload | type | flags | 4 bytes stream, its highest bit reserved | payload |
"""

from __future__ import annotations

import enum

HEAD_BYTES = 9
TYPE_AT = 3
FLAGS_AT = 4
STREAM_AT = 5
STREAM_MASK = 0x7FFFFFFF

DATA = 0
HEADERS = 1
PRIORITY = 2
RST_STREAM = 3
SETTINGS = 4
PUSH_PROMISE = 5
PING = 6
GOAWAY = 7
WINDOW_UPDATE = 8
CONTINUATION = 9

FLAG_END_STREAM = 0x1
FLAG_ACK = 0x1
FLAG_END_HEADERS = 0x4
FLAG_PADDED = 0x8
FLAG_PRIORITY = 0x20

SETTING_HEADER_TABLE_SIZE = 1
SETTING_ENABLE_PUSH = 2
SETTING_MAX_CONCURRENT_STREAMS = 3
SETTING_INITIAL_WINDOW_SIZE = 4
SETTING_MAX_FRAME_SIZE = 5
SETTING_MAX_HEADER_LIST_SIZE = 6

MAX_WINDOW = (1 << 31) - 1
# What holds before a peer has announced something else.
DEFAULT_WINDOW = 65_535
DEFAULT_FRAME_BYTES = 16_384
DEFAULT_TABLE_BYTES = 4_096
MAX_FRAME_BYTES = (1 << 24) - 1


class ErrorCode(enum.IntEnum):
    """Why a stream or a connection ends (RFC 9113)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13
