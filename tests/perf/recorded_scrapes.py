#!/usr/bin/env python3
"""Draws the dashboards from recorded scrapes (tests/harness/scrapes.py), for a machine with GPUs but without Prometheus and a
browser: `.python/bin/python tests/perf/recorded_scrapes.py DIR PICTURES`. Record a directory with

    while sleep 1; do now=$(date +%s%3N)
      curl -s localhost:7778/metrics > DIR/agent-$now.txt; curl -s localhost:7780/metrics > DIR/coordinator-$now.txt
    done
"""

import argparse
import pathlib
import sys
import tempfile
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from harness import dashboards, grafana, scrapes  # noqa: E402


def draw_all(recorded, directory, pictures):
    job = recorded.job()
    # As Grafana has it: four scrapes.
    variables = {"job": job, "rank": ".*", "__rate_interval": f"{max(10, 4 * recorded.every_s)}s"}
    program = directory / "drawing"
    program.mkdir()
    grafana.drawer(program)
    for file, board in dashboards.boards().items():
        path = pictures / file.replace(".json", ".png")
        shown = grafana.draw(board, recorded.server, variables, recorded.begin, recorded.end, program, directory / file, path)
        left_out = [panel["title"] for panel in dashboards.panels(board) if panel["type"] != "row" and panel not in shown]
        print(f"{path}: {job}, {len(shown)} panels; without data: {', '.join(left_out) or 'none'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path, help="of agent-TIME.txt and coordinator-TIME.txt")
    parser.add_argument("pictures", type=pathlib.Path, help="a directory that is made where it is not there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        directory = pathlib.Path(made)
        try:
            with scrapes.Recorded(directory / "prometheus", scrapes.read(arguments.directory), uuid.uuid4().hex) as recorded:
                arguments.pictures.mkdir(parents=True, exist_ok=True)
                draw_all(recorded, directory, arguments.pictures.resolve())
        except (AssertionError, OSError) as error:  # As tests have it; here it is what a person gave.
            sys.exit(str(error))


if __name__ == "__main__":
    main()
