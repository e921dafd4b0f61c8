"""The inside view: what pages, REST and commands tell of a store beyond its positions. A module a view; it
reads, and changes nothing, but for `repair`."""
