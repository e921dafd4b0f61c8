"""What is measured of a store beyond its positions, for pages, REST and commands.

Each module makes the facts of one view. They read files and change nothing.
"""
