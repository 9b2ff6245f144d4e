"""Counts and durations of test cases, from the results of GoogleTest, pytest and Bazel."""

import contextlib
import json
import xml.etree.ElementTree as xml
from dataclasses import dataclass
from urllib.parse import unquote, urlparse


@dataclass
class Counts:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other):
        return Counts(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)

    def __str__(self):
        text = f"{self.passed} passed, {self.failed} failed"
        return text + (f", {self.skipped} skipped" if self.skipped else "")


def cases(path):
    """Test cases of a JUnit file, as written by GoogleTest, pytest and Bazel's wrapper."""
    return xml.parse(path).getroot().iter("testcase")


def count_junit(path):
    return count_cases(cases(path))


def count_cases(found):
    counts = Counts()
    for case in found:
        if case.find("failure") is not None or case.find("error") is not None:
            counts.failed += 1
        elif case.find("skipped") is not None or case.get("status") == "notrun":
            counts.skipped += 1
        else:
            counts.passed += 1
    return counts


def test_results(events_file):
    """Yields (label, result) of each test in Bazel's build event file: exactly those of this run, cached or not."""
    for line in events_file.read_text().splitlines():
        event = json.loads(line)
        if "testResult" in event:
            yield event["id"]["testResult"]["label"], event["testResult"]


def junit_of(result):
    """Returns the test cases of a result, which is one shard of a test; None without a JUnit file."""
    for output in result.get("testActionOutput", []):
        if output["name"] == "test.xml":
            with contextlib.suppress(OSError, xml.ParseError):
                return list(cases(unquote(urlparse(output["uri"]).path)))
    return None


def count_bazel_tests(events_file):
    total = Counts()
    for label, result in test_results(events_file):
        found = junit_of(result)
        counts = count_cases(found or [])
        status = result.get("status", "no result")
        if status != "PASSED" and counts.failed == 0:
            # A test that crashed or timed out has no failed test case.
            print(f"{label}: {status}")
            counts.failed = 1
        elif found is None:
            print(f"{label}: {status} without a readable test.xml")
            counts.failed += 1
        total += counts
    return total


def reused(result):
    return bool(result.get("cachedLocally") or result.get("executionInfo", {}).get("cachedRemotely"))


def executed(events_file):
    """Returns (tests that ran, tests with a cached result); each shard of a test counts as one."""
    flags = [reused(result) for _, result in test_results(events_file)]
    return flags.count(False), flags.count(True)


def durations(events_file):
    """Returns (seconds, name) of each test case that ran."""
    return [(float(case.get("time") or 0), f"{label} {case.get('name')}") for label, result in test_results(events_file)
            if not reused(result) for case in junit_of(result) or []]
