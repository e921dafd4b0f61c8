"""Runs of the pipeline and their schedules."""

from mqadmin.views.view import Rest, View

VIEW = View(__name__, Rest("Pipeline", "pipeline"))
