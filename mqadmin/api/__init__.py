"""REST under /api/v1: code that its routes share, and routes that belong to no view. Routes of a view are in
its folder, mqadmin/views/NOUN/api.py."""
