"""What is delayed and what is prepared, as it waits now."""

from mqadmin.views.view import Rest, View

VIEW = View(__name__, Rest("Waiting", "waiting"))
