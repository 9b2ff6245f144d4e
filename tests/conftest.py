"""What all tests share."""

from harness.processes import become_subreaper


def pytest_configure(config):
    # Before anything is started: harness/processes.py says why.
    become_subreaper()
