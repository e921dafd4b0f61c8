"""The way of a send: where its time goes, how far each step has come, and what a crash would take."""

from mqadmin.views.view import Rest, View

VIEW = View(__name__, Rest("Store", "inside_write", "/store"))
