"""The files of timer messages."""
