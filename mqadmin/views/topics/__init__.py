"""The list of topics, and one topic."""

from mqadmin.views.view import Rest, View

VIEW = View(__name__, Rest("Topics", "topics"))
