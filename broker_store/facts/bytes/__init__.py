"""The bytes of a store's files, cut into named pieces with their fields.

    place.py     which bytes are asked for         viewer.py   finds the file and cuts the bytes
    pieces.py    the result: pieces and jumps      cutter.py   what the kinds of files have in common
    field.py     a field and how it is read

Each kind of file has its fields and its way to be cut in one module:

    record.py, log.py   records, ends of files, room that was never written, bytes that are no record
    queue.py            units of 20 bytes
    index.py            the header, slots of 4 bytes, entries of 20
    stamps.py           the checkpoint and the timer's
    timer.py            the timer log's units of 52 bytes, the timer wheel's slots of 32

Bytes are not trusted: what has no valid meaning becomes a field that says so, not an error.
"""
