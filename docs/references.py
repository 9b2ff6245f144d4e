#!/usr/bin/env python3
"""Generates the reference pages in docs/: .python/bin/python docs/references.py [--check] [PAGE...]

Pages are cli, spec, rules, errors, metrics and records (bench/README.md); all by default. `cli` runs --help of the built programs in .build/bin or FSDPD_BIN:
bazel build //client:fsdpctl //coordinator:fsdpd-coordinator //agent:fsdpd-agent //fsdp/engine:train_local
--check writes nothing, and fails with the pages that are not up to date.
"""

import importlib
import pathlib
import sys

DOCS = pathlib.Path(__file__).resolve().parent
PAGES = {name: DOCS / f"{name}.md" for name in ("cli", "spec", "rules", "errors", "metrics")} | {"records": DOCS / "bench/README.md"}


def main():
    arguments = sys.argv[1:]
    check = "--check" in arguments
    asked = [each for each in arguments if each != "--check"] or list(PAGES)
    unknown = [each for each in asked if each not in PAGES]
    if unknown:
        sys.exit(f"unknown page {unknown[0]}; the pages are {', '.join(PAGES)}")
    old = []
    for name in asked:
        path, text = PAGES[name], importlib.import_module(name).page()
        if check and (not path.exists() or path.read_text() != text):
            old.append(name)
        elif not check:
            path.write_text(text)
    if old:
        sys.exit(f"docs: not up to date: {', '.join(old)}; run: .python/bin/python docs/references.py {' '.join(old)}")


if __name__ == "__main__":
    main()
