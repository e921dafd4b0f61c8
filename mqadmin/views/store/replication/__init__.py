"""Replication as this broker sees it: its slaves or its master, and what a failover now would lose."""

from mqadmin.views.view import Rest, Tab, View

VIEW = View(__name__, Rest("Store", "replication", "/store"), tabs=(Tab("replication", "Replication", 27),))
