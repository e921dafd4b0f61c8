"""The dashboard: pages, REST, admin, jobs and commands over one broker, which they reach through `cluster/`
alone."""
