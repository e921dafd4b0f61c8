"""The streams of the stages of a send, and of the bytes that a crash would lose now."""

from __future__ import annotations

from mqadmin.views.view import Stream

STREAMS = {
    "store.write": Stream(lambda cluster, name: cluster.store.write_path(), 4, in_thread=True, in_turn=False),
    "store.exposure": Stream(lambda cluster, name: cluster.store.exposure(), 8, in_thread=True),
}
