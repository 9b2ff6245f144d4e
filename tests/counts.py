"""How many test cases passed, failed and were skipped, from what GoogleTest, pytest and Bazel leave behind."""

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


def count_junit(path):
    """Test cases in a JUnit file, as GoogleTest, pytest and Bazel's own wrapper write them."""
    counts = Counts()
    for case in xml.parse(path).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            counts.failed += 1
        elif case.find("skipped") is not None or case.get("status") == "notrun":
            counts.skipped += 1
        else:
            counts.passed += 1
    return counts


def test_results(events_file):
    """(label, result) of each test in Bazel's build event file: exactly those of this run, cached or not."""
    for line in events_file.read_text().splitlines():
        event = json.loads(line)
        if "testResult" in event:
            yield event["id"]["testResult"]["label"], event["testResult"]


def count_bazel_tests(events_file):
    total = Counts()
    for label, result in test_results(events_file):
        counts = Counts()
        for output in result.get("testActionOutput", []):
            if output["name"] == "test.xml":
                try:
                    counts = count_junit(unquote(urlparse(output["uri"]).path))
                except (OSError, xml.ParseError):
                    pass
        if result.get("status") != "PASSED" and counts.failed == 0:
            # Crashed or timed out: no test case of its own says so.
            print(f"{label}: {result.get('status', 'no result')}")
            counts.failed = 1
        total += counts
    return total
