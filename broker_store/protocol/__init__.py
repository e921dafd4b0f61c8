"""The remoting protocol without I/O: from bytes to commands and back. Server, client, tests and tools use
it."""
