"""The crash lab: a writer is killed at a chosen point, and its store starts again."""

from mqadmin.views.view import Tab, View

VIEW = View(__name__, tabs=(Tab("lab", "Crash lab", 100),))
