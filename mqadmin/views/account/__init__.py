"""Login, logout and password."""

from mqadmin.views.view import View

VIEW = View(__name__)
