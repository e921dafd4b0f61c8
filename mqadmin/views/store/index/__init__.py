"""The index: slots and chains of its files, and each step of a lookup."""

from mqadmin.views.view import Rest, Tab, View

VIEW = View(__name__, Rest("Store", "inside_index", "/store"), tabs=(Tab("index", "Index", 30),))
