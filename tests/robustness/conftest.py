"""Clusters that a test may break, as tests/integration has them."""

from integration.conftest import own  # noqa: F401
