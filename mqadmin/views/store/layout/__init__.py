"""How the messages of topics lie among each other in the log, and what reading them again costs."""

from mqadmin.views.view import Rest, View

VIEW = View(__name__, Rest("Store", "inside_layout", "/store"))
