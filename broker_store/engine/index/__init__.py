"""The index over keys, and building it again."""
