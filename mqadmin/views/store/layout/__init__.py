"""The layout of the messages of topics in the log, and the cost of reading them again."""

from mqadmin.views.view import Rest, Tab, View

VIEW = View(__name__, Rest("Store", "inside_layout", "/store"), tabs=(Tab("layout", "Layout", 50),))
