"""The commit log and its writer."""
