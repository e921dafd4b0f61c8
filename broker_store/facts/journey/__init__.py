"""The journey of one message: every stop that the store knows of, with its time, its place and its bytes.

    (before) ─► born ─► stored ─► on disk ─► queue ─► index ─► readers ─► (copies, pops) ─► traces

    journey.py   puts the stops together       copies.py    other records of the same message
    own.py       the message's own stops       waiting.py   messages that wait for their real topic
    readers.py   the groups that read it       pops.py      the pops that gave it to a group
    search.py    records by an id, by index    ordered_pops.py   those in order
    stop.py      what a stop is

Copies of a message (a retry, a dead letter, a delayed or prepared form and what was made of it) carry its
message id, so the index finds them. A message without an id has no known copies. All reads are by position,
bounded in steps and in time: call them in a thread. What a consumer did with a message the store does not
know; traces show it, where clients write them.
"""
