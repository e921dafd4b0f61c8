"""What of the store's files is in memory, and who reads what is not."""

from mqadmin.views.view import Rest, Tab, View

VIEW = View(__name__, Rest("Store", "inside_cache", "/store"), tabs=(Tab("cache", "Cache", 40),))
