"""Starts of the store: the running one, the record of each, and the plan of a start now."""

from mqadmin.views.view import Rest, Tab, View

VIEW = View(__name__, Rest("Store", "inside_recoveries"), tabs=(Tab("recovery", "Recovery", 70),))
