#!/usr/bin/env python3
"""Makes the reference pages of docs/ again, all or the named: .python/bin/python docs/references.py [PAGE...]

Pages are cli, spec, rules and metrics. `cli` asks the built programs for their help, in .build/bin or where FSDPD_BIN says:
bazel build //client:fsdpctl //coordinator:fsdpd-coordinator //agent:fsdpd-agent //fsdp/engine:train_local
With --check, writes nothing and says which pages are not what they would be.
"""

import importlib
import pathlib
import sys

DOCS = pathlib.Path(__file__).resolve().parent
PAGES = ["cli", "spec", "rules", "metrics"]


def main():
    arguments = sys.argv[1:]
    check = "--check" in arguments
    asked = [each for each in arguments if each != "--check"] or PAGES
    unknown = [each for each in asked if each not in PAGES]
    if unknown:
        sys.exit(f"there is no page {unknown[0]}; the pages are {', '.join(PAGES)}")
    old = []
    for name in asked:
        path, text = DOCS / f"{name}.md", importlib.import_module(name).page()
        if check and (not path.exists() or path.read_text() != text):
            old.append(name)
        elif not check:
            path.write_text(text)
    if old:
        sys.exit(f"docs: not what it is made of: {', '.join(old)}; run: .python/bin/python docs/references.py {' '.join(old)}")


if __name__ == "__main__":
    main()
