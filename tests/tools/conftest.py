"""A cluster on loopback for the commands to ask."""

from tests.client.conftest import cluster  # noqa: F401
