"""Bytes to values and back, by docs/spec/store-format.md: pure functions, no file, no clock.

Each format is declared once as a table of fields (`layout.Layout`); offsets and sizes are derived from it.
"""
