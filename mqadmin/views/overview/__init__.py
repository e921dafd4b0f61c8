"""The first page: is everything all right now?"""

from mqadmin.views.view import Rest, View

VIEW = View(__name__, Rest("System", "system"))
