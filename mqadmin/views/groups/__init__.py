"""The list of consumer groups, and one group with its lag in each queue."""

from mqadmin.views.view import Rest, View

VIEW = View(__name__, Rest("Groups", "groups"))
