"""The delayed messages and the half messages that wait now."""

from mqadmin.views.view import Rest, View

VIEW = View(__name__, Rest("Waiting", "waiting"))
