// Line charts and bars. Values are read with the pointer, or with the arrow keys while a chart has the focus.
import { el, svg } from "./dom.js";
import { count } from "./numbers.js";

const WIDTH = 520, HEIGHT = 200, LEFT = 62, RIGHT = 10, TOP = 10, BOTTOM = 24;
const OUTLIER = 3;  // Multiple of the 95th percentile: an axis that fits larger values would flatten all others.
const cursors = new Map();  // By chart: index of the selected point.

// About `wanted` round values that cover low .. high, in steps of 1, 2 or 5 times a power of `base`.
export function ticks(low, high, base, wanted = 3) {
  const span = high - low || Math.abs(high) || 1;
  const rough = span / wanted, power = base ** Math.floor(Math.log(rough) / Math.log(base));
  const step = [1, 2, 5, 10].map(each => each * power).find(each => each >= rough);
  const found = [];
  for (let at = Math.floor(low / step); at <= Math.ceil(high / step); ++at) found.push(at * step);
  return found.length > 1 ? found : [found[0], found[0] + step];
}

export function key(name, color, dashed) {
  return el("span", { class: "key" },
    svg("svg", { viewBox: "0 0 16 10", "aria-hidden": "true" },
      svg("line", { x1: 0, x2: 16, y1: 5, y2: 5, class: `line ${color}${dashed ? " dashed" : ""}` })), name);
}

// Round integer steps, or the first and last step if there are fewer than two.
function stepTicks(points) {
  const [first, last] = [points[0].step, points.at(-1).step];
  const round = ticks(first, last, 10, 4).filter(at => Number.isInteger(at) && at >= first && at <= last);
  return round.length > 1 ? round : [...new Set([first, last])];
}

// Upper end of the value axis: the maximum, unless it is an outlier of every series.
export function topOf(points, series) {
  const all = series.map(each => points.map(each.value).filter(Number.isFinite).sort((a, b) => a - b)).filter(each => each.length);
  const most = Math.max(...all.map(each => each.at(-1)));
  const usual = Math.max(...all.map(each => each[Math.floor(0.95 * (each.length - 1))]));
  return most > OUTLIER * usual && usual > 0 ? 1.25 * usual : most;
}

function frame(values, x, y, format, points) {
  return [
    values.map(value => [
      svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }),
      svg("text", { class: "tick", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, format(value))]),
    stepTicks(points).map((step, at) => svg("text", { class: "tick", x: Math.min(x(step), WIDTH - RIGHT - 20), y: HEIGHT - 6,
      "text-anchor": "middle", "data-step": step }, at ? count(step) : `step ${count(step)}`))];
}

// Values that are not finite, like the loss of a bad step, interrupt the line.
function lines(points, series, x, y) {
  return series.map(({ value, color, dashed }) => {
    const runs = [[]];
    for (const point of points) {
      const at = value(point);
      if (Number.isFinite(at)) runs.at(-1).push(`${x(point.step).toFixed(1)},${y(at).toFixed(1)}`);
      else if (runs.at(-1).length) runs.push([]);
    }
    return runs.filter(run => run.length).map(run => run.length > 1
      ? svg("polyline", { class: `line ${color}${dashed ? " dashed" : ""}`, points: run.join(" ") })
      : svg("circle", { class: `fill ${color}`, cx: run[0].split(",")[0], cy: run[0].split(",")[1], r: 3.5 }));
  });
}

// Markers at the top for points above the axis.
function clipped(points, series, x, top) {
  return series.flatMap(({ value, color }) => points.filter(point => value(point) > top).map(point =>
    svg("path", { class: `fill ${color}`, d: `M${x(point.step).toFixed(1)} ${TOP - 8}l4 7h-8z`, "data-clipped": point.step })));
}

function reading(point, series, format) {
  return `step ${point.step}: ` + series.map(each => `${each.name} ${format(each.value(point))}`).join(", ");
}

// `points`: in order of steps, not empty. `series`: {name, color, dashed, value(point)}. `base`: base of round numbers.
// `zero`: the axis begins at zero.
export function chart(title, points, series, format, base = 10, zero = true) {
  const legend = el("span", { class: "legend" }, series.map(each => key(each.name, each.color, each.dashed)));
  const caption = el("figcaption", null, title, legend);
  const all = points.flatMap(point => series.map(each => each.value(point))).filter(Number.isFinite);
  const values = ticks(zero ? 0 : Math.min(...all, Infinity) || 0, all.length ? topOf(points, series) : 1, base);
  const most = Math.max(...all), top = values.at(-1);
  if (most > top) legend.append(el("span", { class: "key" }, `▲ above ${format(top)}, max ${format(most)}`));
  const first = points[0].step, steps = Math.max(1, points.at(-1).step - first);
  const x = step => LEFT + (step - first) * (WIDTH - LEFT - RIGHT) / steps;
  const y = value => TOP + (top - Math.min(value, top)) * (HEIGHT - TOP - BOTTOM) / (top - values[0]);
  const cursor = cursors.get(title);
  const read = cursor === undefined ? null : points[Math.min(cursor, points.length - 1)];
  const label = `${title}: ${reading(points.at(-1), series, format)}; use the arrow keys for other steps`;
  return el("figure", null, caption,
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, tabindex: 0, role: "img", "aria-label": label, "data-chart": title,
      "data-steps": points.map(point => point.step).join(" ") },
      frame(values, x, y, format, points), lines(points, series, x, y), clipped(points, series, x, top),
      read && svg("line", { class: "cross", x1: x(read.step), x2: x(read.step), y1: TOP, y2: HEIGHT - BOTTOM })),
    el("p", { class: "reading", "aria-live": "polite" }, read ? reading(read, series, format) : ""));
}

function move(figure, cursor) {
  const points = figure.dataset.steps.split(" ").length;
  if (cursor === null) cursors.delete(figure.dataset.chart);
  else cursors.set(figure.dataset.chart, Math.max(0, Math.min(points - 1, cursor)));
  document.dispatchEvent(new Event("redraw"));
}

document.addEventListener("keydown", event => {
  const figure = event.target.closest?.("[data-chart]");
  if (!figure) return;
  const points = figure.dataset.steps.split(" ").length, at = cursors.get(figure.dataset.chart) ?? points;
  const keys = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: points - 1, Escape: null };
  if (!(event.key in keys)) return;
  event.preventDefault();
  move(figure, keys[event.key]);
});

document.addEventListener("pointermove", event => {
  const figure = event.target.closest?.("[data-chart]");
  if (!figure) return;
  const steps = figure.dataset.steps.split(" ").map(Number), box = figure.getBoundingClientRect();
  const part = ((event.clientX - box.left) * WIDTH / box.width - LEFT) / (WIDTH - LEFT - RIGHT);
  const wanted = steps[0] + part * (steps.at(-1) - steps[0]);
  const near = steps.reduce((best, step, at) => Math.abs(step - wanted) < Math.abs(steps[best] - wanted) ? at : best, 0);
  if (near !== cursors.get(figure.dataset.chart)) move(figure, near);
});

export function swatch(color) {
  return svg("svg", { class: "swatch", viewBox: "0 0 10 10", "aria-hidden": "true" },
    svg("rect", { width: 10, height: 10, rx: 3, class: `fill ${color}` }));
}

// A stacked bar of parts {name, value, color}. `marks`: {name, value}, drawn as lines across it.
export function bar(label, parts, whole, marks = []) {
  const scale = value => whole > 0 ? value * 1000 / whole : 0;
  let from = 0;
  return svg("svg", { viewBox: "0 0 1000 28", role: "img", "aria-label": label },
    svg("rect", { x: 0, y: 5, width: 1000, height: 18, class: "grid", fill: "none" }),
    parts.map(part => {
      const x = scale(from);
      from += part.value;
      return svg("rect", { x, y: 5, width: Math.max(0, scale(part.value)), height: 18, class: `fill ${part.color}` },
        svg("title", null, part.name));
    }),
    marks.map(mark => svg("line", { class: "mark", x1: scale(mark.value), x2: scale(mark.value), y1: 0, y2: 28 },
      svg("title", null, mark.name))));
}
