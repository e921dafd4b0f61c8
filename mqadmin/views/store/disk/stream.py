"""The stream of the use of the disk."""

from __future__ import annotations

from mqadmin.views.view import Stream

STREAMS = {"store.disk": Stream(lambda cluster, name: cluster.store.disk(), 40, in_thread=True)}
