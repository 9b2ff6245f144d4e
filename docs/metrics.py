"""docs/metrics.md: the tables that the daemons export by."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEAD = """# Metrics

What Prometheus finds at `/metrics` of an agent (`--metrics-listen`) and of a coordinator (`--metrics-listen`), made by
`docs/references.py` of [agent/metrics.cc](../agent/metrics.cc), [coordinator/metrics.cc](../coordinator/metrics.cc) and
[base/process_metrics.cc](../base/process_metrics.cc).
Times are seconds, sizes bytes, dates Unix time; counters end in `_total` and begin at zero. The training job is the label
`fsdpd_job`, a rank's node `fsdpd_node`: scrape configurations set neither. What is asked of a job names it, series of cards too: no join
tells whose a series is.

A rank has 39 series beside its card's, one more once it had a memory spike, and one more on GPUs; an outer axis of its job's
mesh adds six, and fp16, the end of the last step and a failure one each: 50 at most. Rank 0 has up to 19 more, which are its
job's: checkpoints, components of memory as measured, bad steps, learning rate and validation loss; 12 more in FP8, and 4 where there are experts.
"""
ROW = re.compile(r'\{\s*"(?P<name>(?:fsdpd|process)_\w+)",\s*(?P<kind>kCounter|kGauge|kHistogram),\s*"(?P<unit>\w*)",'
                 r'\s*"(?P<labels>[^"]*)",\s*(?P<help>(?:"(?:[^"\\]|\\.)*"\s*)+)\}')
SECTION = re.compile(r"^    // (?P<title>.*)$")
BOUNDS = re.compile(r"((?:^// .*\n)+)constexpr double (k\w+)\[\] = \{([^}]*)\};", re.MULTILINE)


TABLES = {"agent": "agent/metrics.cc", "coordinator": "coordinator/metrics.cc", "process": "base/process_metrics.cc"}


def sections(daemon):
    """[(title, [row])] of a daemon's table, in its order; "process" is what both have in common."""
    text = (ROOT / TABLES[daemon]).read_text()
    table = text[text.index("constexpr Metric kTable[]"):]
    table = table[:table.index("\n};")]
    places = [(found.start(), "title", found["title"]) for found in re.finditer(SECTION.pattern, table, re.MULTILINE)]
    for found in ROW.finditer(table):
        row = {key: found[key] for key in ("name", "unit", "labels")}
        row["kind"] = found["kind"][1:].lower()
        row["help"] = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', found["help"])).replace('\\"', '"')
        places.append((found.start(), "row", row))
    made = []
    for _, what, value in sorted(places, key=lambda place: place[0]):
        if what == "title":
            made.append((value, []))
        else:
            made[-1][1].append(value)
    assert sum(len(rows) for _, rows in made) == len(re.findall(r'\{"(?:fsdpd|process)_', table)), f"{daemon}: a row that is not read"
    return made


def bounds():
    """{histogram: (bounds, why)}"""
    arrays = {name: (numbers, " ".join(line[3:] for line in why.splitlines()))
              for why, name, numbers in BOUNDS.findall((ROOT / "coordinator/metrics.h").read_text())}
    # As coordinator/meters.cc gives them.
    used = {"fsdpd_rpc_seconds": "kCallBounds", "fsdpd_store_seconds": "kStoreBounds", "fsdpd_tick_seconds": "kTickBounds",
            "fsdpd_queue_wait_seconds": "kQueueBounds", "fsdpd_recovery_seconds": "kRecoveryBounds"}
    return {histogram: arrays[name] for histogram, name in used.items()}


def rows(daemon):
    """{name: row}"""
    return {row["name"]: row for _, found in sections(daemon) for row in found}


def page():
    text = HEAD
    for daemon in TABLES:
        text += f"\n## {daemon.capitalize()}\n"
        for title, found in sections(daemon):
            text += f"\n{title}\n\n| metric | kind | labels | what it is |\n|---|---|---|---|\n"
            for row in found:
                labels = ", ".join(f"`{label}`" for label in row["labels"].split(", ") if label)
                text += f"| `{row['name']}` | {row['kind']} | {labels} | {row['help']} |\n"
    text += "\n## Buckets\n\n| histogram | upper bounds, in seconds | why these |\n|---|---|---|\n"
    for name, (numbers, why) in bounds().items():
        text += f"| `{name}` | {' '.join(numbers.split())} | {why} |\n"
    return text
