"""The functions of a connection that have compiled twins in `kernels/`."""

from __future__ import annotations

from typing import NamedTuple

from broker_store.protocol.http2.fields import ReadFields
from broker_store.protocol.http2.frames import AnswerFrames, Scan, answer_frames, scan_frames


class Functions(NamedTuple):
    """What a connection reads and writes bytes with. Without `read_fields` all header blocks are read by
    `fields.FieldDecoder` alone."""

    scan_frames: Scan
    answer_frames: AnswerFrames
    read_fields: ReadFields | None


PLAIN = Functions(scan_frames, answer_frames, None)
