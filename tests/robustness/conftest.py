"""Fixture `own` of tests/integration: clusters that a test may break."""

from integration.conftest import own  # noqa: F401
