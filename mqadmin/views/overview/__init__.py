"""The first page: is everything all right now? Its REST routes are those of the broker as a whole, in
mqadmin/api/system.py."""

from mqadmin.views.view import View

VIEW = View(__name__)
