"""SVG picture of training curves next to those of a peer: loss, gradient norm, and their distances."""

import pathlib
import sys
from html import escape

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "deploy/demo"))

from chart import HEIGHT, WIDTH, Line, drawing  # noqa: E402

_HEAD = 44  # Above each chart, for its title and its legend.
_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #52514e; } .title { font-weight: 600; fill: #0b0b0b; }
.grid { stroke: #e4e3de; } .line { fill: none; stroke-width: 1.5; }
.line.c1 { stroke: #2a78d6; } .line.c2 { stroke: #eb6834; } .line.c3 { stroke: #1baf7a; }
.dot.c1 { fill: #2a78d6; } .dot.c2 { fill: #eb6834; } .dot.c3 { fill: #1baf7a; }
"""


def line(name, values, color, last_step, dashed=False):
    """A value for each step up to the last; the first steps have none if values are means of windows."""
    return Line(name, list(enumerate(values, last_step - len(values) + 1)), color, dashed)


def _legend(lines):
    at = 58
    for each in lines:
        dash = ' stroke-dasharray="6 4"' if each.dashed else ""
        yield f'<path class="line c{each.color}"{dash} d="M{at:.0f} 32h20"/><text x="{at + 26:.0f}" y="36">{escape(each.name)}</text>'
        at += 40 + 6.4 * len(each.name)


def _chart(title, lines, column, row):
    shapes, _, top = drawing(lines, lambda value: f"{value:.3g}", from_zero=False)
    cut = sum(value > top for each in lines for _, value in each.points)
    if cut:
        title += f" ({cut} values lie above)"
    return (f'<g transform="translate({column * WIDTH} {row * (_HEAD + HEIGHT)})">'
            f'<text class="title" x="58" y="16">{escape(title)}</text>{"".join(_legend(lines))}'
            f'<g transform="translate(0 {_HEAD})">{shapes}</g></g>')


def picture(rows):
    """Rows of charts, each (title, lines)."""
    columns = max(map(len, rows))
    charts = "\n".join(_chart(title, lines, column, number) for number, row in enumerate(rows)
                       for column, (title, lines) in enumerate(row))
    size = f"{columns * WIDTH} {len(rows) * (_HEAD + HEIGHT)}"
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" width="{columns * WIDTH}">\n'
            f'<style>{_STYLE}</style>\n<rect width="100%" height="100%" fill="#ffffff"/>\n{charts}\n</svg>\n')
