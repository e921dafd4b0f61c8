"""Where the time of sends goes, and what a crash would take now."""

from __future__ import annotations

from mqadmin.views.view import Stream

STREAMS = {
    "store.write": Stream(lambda cluster, name: cluster.store.write_path(), 4, in_thread=True, in_turn=False),
    "store.exposure": Stream(lambda cluster, name: cluster.store.exposure(), 8, in_thread=True),
}
