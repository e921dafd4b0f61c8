"""Reading: queues by offset, records by place or key, times."""
