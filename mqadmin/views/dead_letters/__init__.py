"""A group's dead letters, and the form that sends them again. Their REST route is one of the group's."""

from mqadmin.views.view import View

VIEW = View(__name__)
