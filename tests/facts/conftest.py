"""Directories in memory for tests of facts of stores."""

from tests.support.directories import tmp_path  # noqa: F401  (a fixture)
