"""The work of each thread of the broker's process, and of its event loop, in the last minute."""

from mqadmin.views.view import Rest, Tab, View

VIEW = View(__name__, Rest("Store", "threads", "/store"), tabs=(Tab("threads", "Threads", 25),))
