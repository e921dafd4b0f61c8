"""What is delayed and what is prepared."""

from __future__ import annotations

from mqadmin.views.view import Stream

STREAMS = {"waiting": Stream(lambda cluster, name: cluster.waiting.facts(), 4)}
