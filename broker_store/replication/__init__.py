"""Replication: a master gives its log to slaves, and a slave copies it (docs/REPLICATION.md).

feeder.py      the HA port of a master: a thread that sends the log to each slave
follower.py    a slave: one connection to its master's HA port, received on the loop
links.py       a feeder's connection to a slave, plain or with TLS
positions.py   what is known of each slave, and which records enough brokers have
"""
