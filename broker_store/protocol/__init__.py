"""The remoting protocol without I/O: bytes in, commands out, and back. One core for server, client, tests and
tools."""
