"""Generator of docs/bench/README.md: the index of the benchmark records.

A record is a page of its own, because its tables have columns of their own: steps, phases of a launch, kernels, file sizes.
"""

import pathlib
import re

from rules import cell

BENCH = pathlib.Path(__file__).resolve().parent / "bench"
HEAD = """# Benchmark records

A benchmark record has the numbers of one measurement, with the hardware, versions and commands. This one measures a row again:

```sh
tests/perf/gpu_vs_rival.py docs/bench/specs/llama3-8b-s8192-2gpu.yaml
```

[PERFORMANCE.md](../PERFORMANCE.md) has the current numbers and what they mean. The numbers of a record do not change: a new measurement
is a new record. `docs/references.py` generates this page. A record is named `DATE-SUBJECT.md`, its heading ends with the date, and
it has a line `- Hardware:`.

| date | record | hardware |
|---|---|---|
"""
TITLE = re.compile(r"# (.+) \((\d{4}-\d\d-\d\d)\)\n")
# The first clause: without details in parentheses, and without the state of the machine.
HARDWARE = re.compile(r"^- Hardware: ((?:\([^)]*\)|[^(),;:\n])+)", re.MULTILINE)


def row(file):
    text = file.read_text()
    title, hardware = TITLE.match(text), HARDWARE.search(text)
    assert title and file.name.startswith(f"{title[2]}-"), f"{file}: its heading must be '# TITLE ({file.name[:10]})'"
    assert hardware, f"{file}: no line '- Hardware: ...'"
    return f"| {title[2]} | [{cell(title[1])}]({file.name}) | {cell(re.sub(r' ?[(][^)]*[)]', '', hardware[1]).strip())} |\n"


def page():
    return HEAD + "".join(row(file) for file in sorted(BENCH.glob("2*.md"), reverse=True))
