"""The stops of one message. They are shown on the page of that message."""

from mqadmin.views.view import Rest, View

VIEW = View(__name__, Rest("Store", "inside_journey", "/store"))
