"""Jobs in the background: start, progress, result, cancel."""

from mqadmin.views.view import Rest, View

VIEW = View(__name__, Rest("Jobs", "jobs"))
