"""The name server: where which topic lives. It keeps nothing on disk but the key-value table."""
