"""The map of the store. The folders below are the other views of its inside."""

from mqadmin.views.view import Rest, Tab, View

VIEW = View(__name__, Rest("Store", "store"), tabs=(Tab("store", "Map", 0),))
