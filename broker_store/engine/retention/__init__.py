"""Which old files go, and how they are removed."""
