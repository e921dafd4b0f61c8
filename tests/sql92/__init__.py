"""SQL92 filters."""
