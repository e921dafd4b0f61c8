"""The asyncio shells of a broker: transport, router and one module of handlers a concern."""
