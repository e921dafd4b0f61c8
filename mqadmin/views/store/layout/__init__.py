"""How the messages of topics lie among each other in the log, and what reading them again costs."""

from mqadmin.views.view import Rest, Tab, View

VIEW = View(__name__, Rest("Store", "inside_layout", "/store"), tabs=(Tab("layout", "Layout", 50),))
