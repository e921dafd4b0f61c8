"""The bytes of the store's files, with their fields named."""

from mqadmin.views.view import Rest, View

VIEW = View(__name__, Rest("Store", "inside_bytes", "/store"))
