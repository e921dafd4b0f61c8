"""The write path: the time of its stages, the progress of each step, the bytes that a crash would lose."""

from mqadmin.views.view import Rest, Tab, View

VIEW = View(
    __name__,
    Rest("Store", "inside_write", "/store"),
    tabs=(Tab("store_write", "Write path", 10), Tab("store_dispatch", "Dispatch & flush", 20)),
)
