"""The processes of a data directory: what a start creates, the children of the broker, and how a command
finds the running broker and asks it."""
