"""What the memory of the broker's process is used for, by part, with the bound of each."""

from mqadmin.views.view import Rest, Tab, View

VIEW = View(__name__, Rest("Store", "memory", "/store"), tabs=(Tab("memory", "Memory", 26),))
