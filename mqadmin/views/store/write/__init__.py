"""The way of a send: where its time goes, how far each step has come, and what a crash would take."""

from mqadmin.views.view import Rest, Tab, View

VIEW = View(
    __name__,
    Rest("Store", "inside_write", "/store"),
    tabs=(Tab("store_write", "Write path", 10), Tab("store_dispatch", "Dispatch & flush", 20)),
)
