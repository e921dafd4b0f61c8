"""Pages of the inside view: a module a view."""
