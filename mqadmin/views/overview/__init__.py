"""The overview: the condition of the broker, its rates and its busiest topics."""

from mqadmin.views.view import Rest, View

VIEW = View(__name__, Rest("System", "system"))
