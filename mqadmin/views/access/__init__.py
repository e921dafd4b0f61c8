"""Who may do what: the users and rules of the broker, the users and tokens of the dashboard, refusals and
changes."""

from mqadmin.views.view import Rest, View

VIEW = View(__name__, Rest("Access", "access"))
