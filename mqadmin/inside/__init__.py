"""What the inside view asks of the broker of this process: a module a view that needs more than
`broker_store.facts`."""
