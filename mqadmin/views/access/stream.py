"""Whether access control is on, and what it refused."""

from __future__ import annotations

from mqadmin.views.view import Stream

STREAMS = {"access": Stream(lambda cluster, name: cluster.access.state(), 8)}
