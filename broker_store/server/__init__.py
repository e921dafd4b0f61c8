"""The asyncio part of a broker: the listener, its channels, the router, and one module of handlers for each
subject."""
