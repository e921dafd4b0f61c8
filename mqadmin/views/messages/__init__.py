"""Where is my message? The search, and one message with its bytes as they lie in the log."""

from mqadmin.views.view import Rest, View

VIEW = View(__name__, Rest("Messages", "messages"))
