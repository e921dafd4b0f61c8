"""The asyncio shells of a broker: channel, listener, router and one module of handlers a concern."""
