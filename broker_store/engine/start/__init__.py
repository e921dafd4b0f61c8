"""Starts: recovery, what it compares and reports, the record of ends, records of starts."""
