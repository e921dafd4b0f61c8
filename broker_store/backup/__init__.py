"""Backup and restore: a consistent picture of a store, made while the broker runs, and a store made of it
(docs/BACKUP.md)."""
