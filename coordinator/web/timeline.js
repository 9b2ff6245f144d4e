// Timeline of one step: memory, and lanes with a box per instruction. Rows are read with the pointer, or with the arrow keys
// while a row has the focus. Several timelines of the step, planned and measured, share one time axis, and each lane has a
// row per timeline.
//
// A timeline: {name, seconds, runs: [{lane, name, start, seconds}], components, memory: [{start, bytes}]}. Times
// are in seconds from the begin of the step. A sample has bytes by component and is valid until the next one.
import { key, swatch, ticks } from "./chart.js";
import { el, svg } from "./dom.js";
import { bytes, seconds } from "./numbers.js";

const WIDTH = 1180, LEFT = 132, RIGHT = 14, TOP = 8, BOTTOM = 24, MEMORY = 200, BOX = 15, GAP = 3, LANE_GAP = 12;
// Maximum axis length, as a multiple of the shortest timeline: a measured step that took a hundred times as long would make
// the planned one invisible.
const CLIPPED = 3;
const LANES = ["compute", "gather", "reduce", "outer", "copy", "send", "receive", "fetch", "update"];
const COLORS = ["c1", "c2", "c4", "c3", "c6", "c5", "c7", "c0"];
let rows = new Map();  // By row, as last drawn: its readable parts, [{start, seconds, describe}].
let read = null;  // The selected part: {row, at}.

const sum = values => values.reduce((all, value) => all + value, 0);
const kindOf = run => run.name.split(" ")[0];
const duration = value => value === 0 ? "0" : value < 0 ? `−${seconds(-value)}` : seconds(value);

function axisOf(timelines) {
  const ends = timelines.map(timeline => Math.max(timeline.seconds, ...timeline.runs.map(run => run.start + run.seconds)));
  const from = Math.min(0, ...timelines.flatMap(timeline => [...timeline.runs, ...timeline.memory].map(each => each.start)));
  const end = Math.max(...ends), to = Math.min(end, CLIPPED * Math.min(...ends)) || end;
  const x = at => LEFT + (Math.min(at, to) - from) * (WIDTH - LEFT - RIGHT) / (to - from || 1);
  return { from, to, end, x, attributes: { "data-from": from, "data-to": to, "data-left": LEFT, "data-right": WIDTH - RIGHT } };
}

function timeAxis({ from, to, x }, height) {
  return ticks(from, to, 10, 8).filter(at => at >= from && at <= to).map(at => [
    svg("line", { class: "grid", x1: x(at), x2: x(at), y1: TOP, y2: height - BOTTOM }),
    svg("text", { class: "tick", x: Math.min(x(at), WIDTH - RIGHT - 16), y: height - 6, "text-anchor": "middle" }, duration(at))]);
}

// Marks the start of the selected part in both figures.
function cross({ x }, height) {
  const part = read && rows.get(read.row)?.[read.at];
  return part && svg("line", { class: "cross", x1: x(part.start), x2: x(part.start), y1: TOP, y2: height - BOTTOM });
}

function reading(mine) {
  const part = read && mine(read.row) && rows.get(read.row)?.[read.at];
  return el("p", { class: "reading", "aria-live": "polite" }, part ? part.describe() : "");
}

// --- memory

// Path of the sum of the first `components` components.
function edge(timeline, components, x, y) {
  let path = "", last;
  for (const { start, bytes: held } of timeline.memory) {
    const at = y(sum(held.slice(0, components))).toFixed(1);
    if (at === last) continue;
    path += last === undefined ? `M${x(start).toFixed(1)} ${at}` : `H${x(start).toFixed(1)}V${at}`;
    last = at;
  }
  return `${path}H${x(timeline.seconds).toFixed(1)}`;
}

// Each area extends to the baseline; the highest is drawn first, and lower ones cover it.
function areas(timeline, colorOf, x, y) {
  return timeline.components.map((name, at) => {
    if (!timeline.memory.some(sample => sample.bytes[at] > 0)) return null;
    const path = `${edge(timeline, at + 1, x, y)}V${y(0)}H${x(timeline.memory[0].start).toFixed(1)}Z`;
    return svg("path", { class: `area fill ${colorOf(name)}`, d: path, "data-component": name });
  }).reverse();
}

function describeSample(timeline, start, held) {
  const parts = timeline.components.map((name, at) => held[at] > 0 && `${name} ${bytes(held[at])}`).filter(Boolean);
  return `${timeline.name} at ${duration(start)}: ${bytes(sum(held))} (${parts.join(", ")})`;
}

const heldAt = (timeline, start) => (timeline.memory.findLast(sample => sample.start <= start) || timeline.memory[0]).bytes;

// The sample times of all timelines. A timeline is not read beyond its end.
function memoryRow(withMemory) {
  const starts = [...new Set(withMemory.flatMap(timeline => timeline.memory.map(sample => sample.start)))].sort((a, b) => a - b);
  const end = Math.max(...withMemory.map(timeline => timeline.seconds));
  return starts.map((start, at) => ({
    start, seconds: (starts[at + 1] ?? Math.max(start, end)) - start,
    describe: () => withMemory.filter(timeline => start <= timeline.seconds)
      .map(timeline => describeSample(timeline, start, heldAt(timeline, start))).join(". "),
  }));
}

function memory(withMemory, axis, colorOf, planned) {
  const height = TOP + MEMORY + BOTTOM, [main, ...others] = withMemory;
  const most = Math.max(planned, ...withMemory.flatMap(timeline => timeline.memory.map(sample => sum(sample.bytes))));
  const values = ticks(0, most, 2), y = value => TOP + MEMORY * (1 - value / values.at(-1)), { x } = axis;
  const shown = main.components.filter((_, at) => main.memory.some(sample => sample.bytes[at] > 0));
  return el("figure", { class: "step" },
    el("figcaption", null, `Memory in a step: ${withMemory.map(timeline => timeline.name).join(" and ")}`, el("span", { class: "legend" },
      shown.map(name => el("span", { class: "key" }, swatch(colorOf(name)), name)),
      others.map(other => key(other.name, "ink")), planned > 0 && key("planned peak", "c4", true))),
    reading(row => row === "memory"),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, tabindex: 0, role: "img", "data-row": "memory", "data-most": values.at(-1),
      "data-top": TOP, "data-ground": TOP + MEMORY, ...axis.attributes,
      "aria-label": `Memory over the step, ${main.name}: at most ` +
        `${bytes(Math.max(...main.memory.map(sample => sum(sample.bytes))))}; use the arrow keys to read values` },
      values.map(value => [
        svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }),
        svg("text", { class: "tick", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, bytes(value))]),
      timeAxis(axis, height), areas(main, colorOf, x, y),
      others.map(other => ["halo", "line ink"].map(kind =>
        svg("path", { class: kind, d: edge(other, other.components.length, x, y), "data-timeline": other.name }))),
      planned > 0 && svg("line", { class: "line c4 dashed", x1: LEFT, x2: WIDTH - RIGHT, y1: y(planned), y2: y(planned) }),
      cross(axis, height)));
}

// --- lanes

// One path per kind of instruction, because a step may have thousands of boxes. Wide boxes end with a gap.
function boxes(runs, top, { x, to }, colorOf) {
  const paths = new Map();
  for (const run of runs) {
    if (run.start >= to) break;
    const from = x(run.start), width = Math.max(0.4, x(run.start + run.seconds) - from);
    const shown = (width > 3 ? width - 0.8 : width).toFixed(2), kind = kindOf(run);
    paths.set(kind, `${paths.get(kind) || ""}M${from.toFixed(2)} ${top}h${shown}v${BOX}h-${shown}z`);
  }
  return [...paths].map(([kind, path]) => svg("path", { class: `box fill ${colorOf(kind)}`, d: path, "data-kind": kind }));
}

const runsOf = (timeline, lane) => timeline.runs.filter(run => run.lane === lane).sort((a, b) => a.start - b.start);
const nameOf = (timeline, lane) => `${lane} ${timeline.name}`;

// Removes what plans do not distinguish: the bucket within a unit, and whether gradients are accumulated.
const planned = name => name.replace(/ adding$/, "").replace(/\/\d+/, "");
// Runs of the same instruction: a parameter may be gathered several times in a step.
const sameInstruction = (timeline, run) =>
  timeline.runs.filter(each => each.lane === run.lane && planned(each.name) === planned(run.name));

function describeRun(run, timeline, others) {
  const which = sameInstruction(timeline, run).indexOf(run);
  const comparison = others.map(other => [other.name, sameInstruction(other, run)[which]])
    .filter(([, match]) => match).map(([name, match]) => `; ${name} ${duration(match.seconds)}`).join("");
  return `${run.lane}, ${timeline.name}: ${run.name} takes ${duration(run.seconds)}, from ${duration(run.start)} to ` +
    `${duration(run.start + run.seconds)}${comparison}`;
}

function picked(name, top, x) {
  const part = read?.row === name && rows.get(name)[read.at];
  return part && svg("rect", { class: "picked", x: x(part.start) - 1, y: top - 2, height: BOX + 4,
    width: Math.max(1, x(part.start + part.seconds) - x(part.start)) + 2 });
}

function drawRow(timeline, lane, top, axis, colorOf) {
  const runs = runsOf(timeline, lane), name = nameOf(timeline, lane);
  const label = `${lane}, ${timeline.name}: ${runs.length} instructions, busy for ` +
    `${seconds(sum(runs.map(run => run.seconds)))}; use the arrow keys to read them`;
  return [
    svg("text", { class: "tick", x: LEFT - 6, y: top + BOX - 3, "text-anchor": "end" }, timeline.name),
    svg("g", { tabindex: runs.length ? 0 : null, role: "img", "aria-label": label, "data-row": name, "data-runs": runs.length },
      svg("rect", { class: "track", x: LEFT, y: top, width: WIDTH - LEFT - RIGHT, height: BOX }),
      boxes(runs, top, axis, colorOf), picked(name, top, axis.x)),
    runs.some(run => run.start + run.seconds > axis.to) &&
      svg("path", { class: "fill c0", d: `M${WIDTH - RIGHT + 3} ${top + 2}l8 ${BOX / 2 - 2}l-8 ${BOX / 2 - 2}z`, "data-clipped": name })];
}

function lanesOf(timelines) {
  const used = new Set(timelines.flatMap(timeline => timeline.runs.map(run => run.lane)));
  return [...new Set([...LANES, ...used])].filter(lane => used.has(lane));
}

function lanes(timelines, axis) {
  const kinds = [...new Set(timelines.flatMap(timeline => timeline.runs.map(kindOf)))], order = lanesOf(timelines);
  const colorOf = kind => COLORS[kinds.indexOf(kind) % COLORS.length];
  const each = timelines.length * (BOX + GAP) + LANE_GAP, height = TOP + order.length * each + BOTTOM;
  return el("figure", { class: "step" },
    el("figcaption", null, `Lanes in a step: ${timelines.map(timeline => timeline.name).join(" and ")}`, el("span", { class: "legend" },
      kinds.map(kind => el("span", { class: "key" }, swatch(colorOf(kind)), kind)))),
    reading(row => row !== "memory"),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, "data-lanes": order.length, ...axis.attributes },
      timeAxis(axis, height),
      order.map((lane, at) => [
        svg("text", { class: "lane", x: 0, y: TOP + at * each + BOX - 3 }, lane),
        timelines.map((timeline, row) => drawRow(timeline, lane, TOP + at * each + row * (BOX + GAP), axis, colorOf))]),
      cross(axis, height)));
}

function readable(timelines, withMemory) {
  const found = new Map(withMemory.length ? [["memory", memoryRow(withMemory)]] : []);
  for (const timeline of timelines) {
    const others = timelines.filter(other => other !== timeline);
    for (const lane of lanesOf([timeline])) {
      found.set(nameOf(timeline, lane), runsOf(timeline, lane).map(run =>
        ({ start: run.start, seconds: run.seconds, describe: () => describeRun(run, timeline, others) })));
    }
  }
  return found;
}

// `colorOf`: color of a component. `planned`: planned peak in bytes; 0: none. The memory of the first timeline is drawn as
// areas, that of others as a line.
export function drawTimelines(timelines, colorOf, planned) {
  const axis = axisOf(timelines), withMemory = timelines.filter(timeline => timeline.memory.length);
  rows = readable(timelines, withMemory);
  const note = axis.end > axis.to && el("p", { class: "note" },
    `The axis ends at ${seconds(axis.to)}, ${CLIPPED} times the shorter step; the longer one continues to ${seconds(axis.end)} (▸).`);
  return [note, withMemory.length > 0 && memory(withMemory, axis, colorOf, planned), lanes(timelines, axis)];
}

// --- reading

function move(row, at) {
  const parts = rows.get(row);
  if (!parts?.length) return;
  read = at === null ? null : { row, at: Math.max(0, Math.min(parts.length - 1, at)) };
  document.dispatchEvent(new Event("redraw"));
}

const rowOf = event => event.target.closest?.("[data-row]")?.dataset.row;

document.addEventListener("focusin", event => {
  const row = rowOf(event);
  if (row && read?.row !== row) move(row, 0);
});

document.addEventListener("keydown", event => {
  const row = rowOf(event);
  if (!row) return;
  const at = read?.row === row ? read.at : -1;
  const keys = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: Infinity, Escape: null };
  if (!(event.key in keys)) return;
  event.preventDefault();
  move(row, keys[event.key]);
});

document.addEventListener("pointermove", event => {
  const row = rowOf(event), figure = event.target.closest?.("svg");
  if (!row) return;
  const box = figure.getBoundingClientRect(), { from, to } = figure.dataset;
  const part = ((event.clientX - box.left) * WIDTH / box.width - LEFT) / (WIDTH - LEFT - RIGHT);
  const wanted = Number(from) + part * (to - from);
  const off = ({ start, seconds: length }) => Math.max(start - wanted, wanted - start - length, 0);
  const near = rows.get(row).reduce((best, each, at, all) => off(each) < off(all[best]) ? at : best, 0);
  if (read?.row !== row || read.at !== near) move(row, near);
});
