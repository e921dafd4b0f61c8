"""The store doctor: runs of the check, what they found, and the repair they propose."""

from mqadmin.views.view import Rest, Tab, View

VIEW = View(__name__, Rest("Store", "inside_checks", "/store"), tabs=(Tab("doctor", "Doctor", 80),))
