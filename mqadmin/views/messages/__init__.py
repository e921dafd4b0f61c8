"""The search for messages, and one message with its bytes in the log."""

from mqadmin.views.view import Rest, View

VIEW = View(__name__, Rest("Messages", "messages"))
