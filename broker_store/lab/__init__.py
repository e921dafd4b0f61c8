"""The crash lab: a store of its own that is killed and started again, for those who want to learn what that
does."""
