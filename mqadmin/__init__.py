"""The dashboard: pages, REST, admin, jobs and commands over one broker. It comes in by one door,
`clusters`."""
