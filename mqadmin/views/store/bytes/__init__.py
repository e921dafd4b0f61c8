"""The bytes of the store's files, with their fields named."""

from mqadmin.views.view import Rest, Tab, View

VIEW = View(__name__, Rest("Store", "inside_bytes", "/store"), tabs=(Tab("bytes", "Bytes", 90),))
