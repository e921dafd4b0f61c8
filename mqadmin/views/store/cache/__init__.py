"""The parts of the store's files that are in memory, and the groups that read other parts."""

from mqadmin.views.view import Rest, Tab, View

VIEW = View(__name__, Rest("Store", "inside_cache", "/store"), tabs=(Tab("cache", "Cache", 40),))
