"""The door to the broker: pages, REST, the admin, jobs and streams reach it through this package alone."""
