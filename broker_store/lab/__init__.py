"""The crash lab: it writes to a store of its own, kills the writer and starts the store again, to show the
effect."""
