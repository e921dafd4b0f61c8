"""REST under /api/v1: what its routes have in common, and those that belong to no view. Routes of a view
stand in its folder, mqadmin/views/NOUN/api.py."""
