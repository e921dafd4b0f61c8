"""Starts of the store: the one that runs, the record of each, and what a start would do now."""

from mqadmin.views.view import Rest, Tab, View

VIEW = View(__name__, Rest("Store", "inside_recoveries"), tabs=(Tab("recovery", "Recovery", 70),))
