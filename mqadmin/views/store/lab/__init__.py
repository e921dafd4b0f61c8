"""The crash lab: a writer is killed at a chosen point, and its store starts again."""

from mqadmin.views.view import View

VIEW = View(__name__)
