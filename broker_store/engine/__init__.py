"""Files and the order of events: the store. No socket, no asyncio; only `disk` calls the operating system."""
