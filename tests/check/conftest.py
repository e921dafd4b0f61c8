"""Directories in memory for tests of the check, the doctor and the repair."""

from tests.support.directories import tmp_path  # noqa: F401  (a fixture)
