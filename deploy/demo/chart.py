"""Line chart as inline SVG without scripts, fonts and other files. Colors are classes in the style of page.html."""
import math
from html import escape

WIDTH, HEIGHT = 520, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 16, 14, 26


def _nice_step(span, count):
    """Returns 1, 2 or 5 times a power of ten that divides `span` into about `count` parts."""
    rough = span / count
    power = 10 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)


def _ticks(low, high, count):
    step = _nice_step(high - low, count)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def _domain(values, from_zero):
    """Returns the y range and the values above it. A warm-up step that takes ten times as long must not flatten the
    rest: outliers are clipped, and the note of the chart reports them."""
    low, bulk = min(values), sorted(values)[max(0, math.ceil(len(values) * 0.95) - 1)]
    high = max(values)
    if high > 2 * bulk > 0:
        high = bulk * 1.2
    if from_zero:
        low = min(low, 0)
    if high - low < 1e-9:
        high = low + (abs(low) or 1)
    pad = 0 if from_zero else 0.04 * (high - low)
    return low - pad, high * 1.04 if from_zero else high + pad


class Line:
    """A series over steps. `color` is 1, 2 or 3; points are (step, value)."""

    def __init__(self, name, points, color=1, dashed=False):
        self.name, self.points, self.color, self.dashed = name, points, color, dashed


def line_chart(title, lines, label, from_zero=True, high=None):
    """A chart. `label` formats a value. `high` fixes the top of the y axis (1.0 for a ratio)."""
    lines = [line for line in lines if line.points]
    if not lines:
        return f'<figure><figcaption>{escape(title)}</figcaption><p class="note">Not measured in this run.</p></figure>'
    shapes, x, top = drawing(lines, label, from_zero, high)
    caption = f"<figcaption>{escape(title)}{_legend(lines)}</figcaption>"
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{shapes}</svg>'
    cut = [f"step {step}: {label(value)}" for line in lines for step, value in line.points if value > top]
    return f'<figure>{caption}{svg}{_note(cut)}{_readings(lines, x, label)}</figure>'


def drawing(lines, label, from_zero=True, high=None):
    """Grid, axes and lines as SVG within WIDTH x HEIGHT; where a step lies in it; and the value at its top, which no
    line crosses. Each line has points."""
    values = [value for line in lines for _, value in line.points]
    low, top = _domain(values, from_zero)
    if high is not None:
        low, top = 0, high
    steps = [step for line in lines for step, _ in line.points]
    first, last = min(steps), max(max(steps), min(steps) + 1)

    def x(step):
        return _LEFT + (step - first) / (last - first) * (WIDTH - _LEFT - _RIGHT)

    def y(value):
        return _TOP + (top - min(value, top)) / (top - low) * (HEIGHT - _TOP - _BOTTOM)

    svg = []
    for tick in _ticks(low, top, 4):
        svg.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        svg.append(_text(_LEFT - 8, y(tick) + 4, "end", label(tick)))
    whole = [tick for tick in _ticks(first, last, 6) if tick == int(tick)]
    svg += [_text(x(tick), HEIGHT - 8, "middle", f"{tick:.0f}") for tick in whole]
    svg.append(_text(_LEFT, HEIGHT - 8, "start", "step"))
    for line in lines:
        path = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in line.points)
        dash = ' stroke-dasharray="6 4"' if line.dashed else ""
        svg.append(f'<polyline class="line c{line.color}"{dash} points="{path}"/>')
        if not line.dashed:
            end_step, end_value = line.points[-1]
            svg.append(f'<circle class="dot c{line.color}" cx="{x(end_step):.1f}" cy="{y(end_value):.1f}" r="4"/>')
    return "".join(svg), x, top


def _text(x, y, anchor, text):
    return f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _legend(lines):
    if len(lines) < 2:  # The title describes a single series.
        return ""
    keys = [f'<i class="c{line.color}{" dashed" if line.dashed else ""}"></i>{escape(line.name)}' for line in lines]
    return f'<span class="legend">{"".join(f"<span class=key>{key}</span>" for key in keys)}</span>'


def _note(cut):
    if not cut:
        return ""
    more = f" and {len(cut) - 3} more" if len(cut) > 3 else ""
    return f'<p class="note">above the axis: {escape("; ".join(cut[:3]))}{more}</p>'


def _readings(lines, x, label):
    """Returns the text that the script of the page shows at the pointer: "x|text" per step."""
    by_step = {}
    for line in lines:
        for step, value in line.points:
            by_step.setdefault(step, []).append(f"{line.name} {label(value)}")
    rows = "\n".join(f"{x(step):.1f}|step {step}: {', '.join(texts)}" for step, texts in sorted(by_step.items()))
    return f'<template class="readings">{escape(rows)}</template>'
