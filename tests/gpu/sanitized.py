#!/usr/bin/env python3
"""Runs the CUDA tests of kernels under NVIDIA's compute-sanitizer: no access out of bounds, no race in shared memory.

    tests/gpu/sanitized.py [--tool memcheck] [TEST ...]

Prints a JSON line per test and tool. racecheck excludes kernels of cuBLASLt, for which it reports false positives, because it
does not support barriers of the copy unit. Needs the tests built with --config=cuda (FSDPD_BIN: their directory).
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("FSDPD_BIN", ROOT / ".build/bin"))
TESTS = ("fsdp/comm/sum_parts_cuda_test", "fsdp/optimizer/make_optimizer_cuda_test",
         "fsdp/optimizer/sharded_params_cuda_test", "fsdp/model/native/native_ops_cuda_test",
         "fsdp/model/native/native_experts_cuda_test", "fsdp/model/native/native_fp8_cuda_test")
TOOLS = {"memcheck": [], "racecheck": ["--kernel-name-exclude", "kernel_substring=nvjet"]}
FOUND = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")
LIMIT_S = 600


def sanitized(tool, test):
    command = ["compute-sanitizer", "--tool", tool, *TOOLS[tool], "--error-exitcode", "9", BIN / test]
    began = time.monotonic()
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=LIMIT_S)
    found = FOUND.search(done.stdout)
    passed = re.search(r"PASSED\s*\] (\d+) test", done.stdout)
    count = int(passed.group(1)) if passed else 0  # 0 without a GPU: all are skipped.
    right = done.returncode == 0 and found and found.group(1) == "0" and count
    print(json.dumps({"tool": tool, "test": test, "passed": count,
                      "found": int(found.group(1)) if found else None, "seconds": round(time.monotonic() - began)}), flush=True)
    return "" if right else done.stdout[-4000:] + done.stderr[-1000:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", default=TESTS, metavar="TEST")
    parser.add_argument("--tool", action="append", choices=TOOLS)
    options = parser.parse_args()
    return "\n".join(filter(None, (sanitized(tool, test) for tool in options.tool or TOOLS for test in options.tests)))


if __name__ == "__main__":
    sys.exit(main() or 0)
