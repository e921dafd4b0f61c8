"""What each thread of the broker's process and its event loop did in the last minute."""

from mqadmin.views.view import Rest, Tab, View

VIEW = View(__name__, Rest("Store", "threads", "/store"), tabs=(Tab("threads", "Threads", 25),))
