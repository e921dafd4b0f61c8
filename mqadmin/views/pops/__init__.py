"""The messages that a group popped and that are invisible to it. A part of them is on the page of the
group."""

from mqadmin.views.view import Rest, View

VIEW = View(__name__, Rest("Groups", "pops"))
