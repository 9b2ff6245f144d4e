// #/jobs/ID: one job. Its charts show the step records of the agents, and then the newest report at each refresh.
import { bar, chart, swatch } from "./chart.js";
import { measureTimeline, planTimeline, stepTimelines } from "./steps.js";
import { el, section, table } from "./dom.js";
import { badge, rate, stateOf, stepsOf, whyOf } from "./jobs.js";
import { between, bytes, count, date, large, loss, number, seconds, short } from "./numbers.js";

// Maximum number of points of a job; beyond it every other point is dropped, so charts get coarser instead of shorter.
const MAX_POINTS = 2000;
const MAX_RECORDS = 1000;  // Number of recorded steps to request.
const COLORS = ["c1", "c2", "c3", "c4", "c5", "c6", "c7", "c0"];
const histories = new Map();  // By job: {attempt, points, missing}.

export const title = (_, id) => id;

function pointOf(step) {
  const memory = step.memory || step;  // Reports nest memory, records do not.
  return {
    step: number(step.step), loss: number(step.loss), rate: rate(step), seconds: number(step.step_seconds),
    exposed: number(step.exposed_seconds), peak: number(memory.peak_bytes), reserved: number(memory.reserved_bytes),
  };
}

// Loads the steps before the first refresh, once per attempt, thinned if there are many.
async function recorded(ask, job) {
  const history = histories.get(job.id) || { points: [], missing: 0 };
  histories.set(job.id, history);
  if (!number(job.attempt) || history.attempt === job.attempt) return;
  const every = Math.max(1, Math.ceil(Math.max(number(job.last_step?.step), number(job.ledger?.newest_step)) / MAX_RECORDS));
  const page = await ask("ListSteps", { id: job.id, every, page_size: 2 * MAX_RECORDS }).catch(() => null);
  if (!page) return;  // The coordinator is of an older release, or busy: retried at the next refresh.
  history.attempt = job.attempt;
  history.points = (page.steps || []).map(pointOf);
  history.missing = (page.missing || []).reduce((sum, each) => sum + number(each.last) - number(each.first) + 1, 0);
}

function remember(job) {
  const history = histories.get(job.id);
  if (!number(job.last_step?.step)) return history.points;
  const point = pointOf(job.last_step);
  // A job that resumed from a checkpoint repeats steps.
  history.points = [...history.points.filter(each => each.step < point.step), point];
  if (history.points.length > MAX_POINTS) history.points = history.points.filter((_, at) => at % 2 === 0 || at === MAX_POINTS);
  return history.points;
}

export async function load(ask, _, id) {
  const { job } = await ask("GetJob", { id });
  await Promise.all([recorded(ask, job), measureTimeline(ask, job)]);
  planTimeline(ask, job);  // Not awaited: a large plan takes seconds.
  return { job, points: remember(job), missing: histories.get(job.id).missing };
}

function tile(value, name, note) {
  return el("div", { class: "tile" }, el("b", null, value), el("span", null, name), note && el("small", null, note));
}

// ", epoch 1.25": passes over the training data; empty if unknown.
function epochOf(job) {
  const each = number(job.epoch_samples), samples = number(job.last_step?.step) * number(job.resolved?.train?.global_batch);
  return each ? `, epoch ${(samples / each).toFixed(2)}` : "";
}

function tiles(job) {
  const step = job.last_step || {}, made = number(step.step), planned = number(job.memory_plan?.peak_bytes);
  const exposed = number(step.step_seconds) ? 100 * number(step.exposed_seconds) / step.step_seconds : 0;
  return el("div", { class: "tiles" },
    tile(count(made), `of ${stepsOf(job) ? count(stepsOf(job)) : "?"} steps${epochOf(job)}`, number(job.skipped_steps) > 0 && `${count(job.skipped_steps)} skipped`),
    tile(made ? loss(step.loss) : "–", "loss", made && `first ${loss(job.first_loss)}`),
    job.last_validation && tile(loss(job.last_validation.loss), `validation loss after step ${count(job.last_validation.step)}`,
      job.best_validation && `best ${loss(job.best_validation.loss)} after step ${count(job.best_validation.step)}`),
    tile(made ? large(rate(step)) : "–", "tokens/s"),
    tile(made ? seconds(step.step_seconds) : "–", "step time", made && `${exposed.toFixed(1)}% exposed communication`),
    tile(number(job.peak_bytes) ? bytes(job.peak_bytes) : "–", "peak memory of rank 0", planned && `planned ${bytes(planned)}`),
    tile(number(job.start_unix_nanos) ? between(job.start_unix_nanos, job.end_unix_nanos) : "–",
      `attempt ${number(job.attempt)}`, `submitted ${date(job.create_unix_nanos)}`));
}

function charts(job, points) {
  if (!points.length) {
    return el("p", { class: "note" }, number(job.end_unix_nanos) ? `No steps completed: ${job.failure?.error || job.reason || ""}`
      : "No steps yet.");
  }
  const planned = number(job.memory_plan?.peak_bytes);
  return el("div", { class: "charts" },
    chart("Loss", points, [{ name: "loss", color: "c1", value: point => point.loss }], loss, 10, false),
    chart("Tokens per second", points, [{ name: "tokens/s", color: "c3", value: point => point.rate }], large),
    chart("Step time", points, [
      { name: "step", color: "c1", value: point => point.seconds },
      { name: "exposed communication", color: "c2", value: point => point.exposed }], seconds),
    chart("Memory of rank 0", points, [
      { name: "peak", color: "c1", value: point => point.peak },
      { name: "reserved", color: "c3", value: point => point.reserved },
      { name: "planned peak", color: "c4", dashed: true, value: () => planned }], bytes, 2));
}

// Color of a memory component in all charts: by its position in the plan, followed by components that only measurements
// have.
function colorsOf(job) {
  const names = (job.memory_plan?.components || []).filter(part => number(part.bytes) > 0).map(part => part.name);
  return name => {
    if (!names.includes(name)) names.push(name);
    return COLORS[names.indexOf(name) % COLORS.length];
  };
}

function memory(job) {
  const colorOf = colorsOf(job);
  const plan = job.memory_plan || {}, planned = number(plan.peak_bytes), measured = number(job.peak_bytes);
  const parts = (plan.components || []).filter(part => number(part.bytes) > 0).map(part =>
    ({ name: part.name, value: number(part.bytes), color: colorOf(part.name), note: part.note }));
  if (!parts.length) return section("Memory plan per rank", el("p", null, "Not planned yet."));
  const caption = measured ? `Rank 0 measured ${bytes(measured)}, ${(100 * measured / planned).toFixed(0)}% of the planned ` +
    `${bytes(planned)} (line).` : `Planned ${bytes(planned)}; not measured yet.`;
  return section("Memory plan per rank", el("p", null, caption),
    bar(caption, parts, Math.max(planned, measured) * 1.02, measured ? [{ name: `measured ${bytes(measured)}`, value: measured }] : []),
    table(null, [["Component"], ["Bytes", "number"], ["Source"]],
      parts.map(part => [[swatch(part.color), part.name], bytes(part.value), part.note || ""])));
}

// Communication that overlaps compute costs no time; exposed communication is time in which the device waits.
function lanes(job) {
  const step = job.last_step;
  if (!number(step?.step)) return null;
  const whole = number(step.step_seconds);
  const rows = [{ name: "compute", busy: number(step.compute_seconds), exposed: 0, color: "c3" },
    ...(step.ops || []).map(op => ({
      name: short(op.op, "COMM_OP_").toLowerCase().replaceAll("_", " "), busy: number(op.seconds), exposed: number(op.exposed_seconds),
      bytes: number(op.bytes), count: number(op.count), color: "c1" }))];
  const longest = Math.max(whole, ...rows.map(each => each.busy));
  return section(`Lanes of step ${step.step}, rank 0`,
    el("p", { class: "soft" }, swatch("c3"), "compute ", swatch("c1"), "overlapped by compute ", swatch("c2"),
      `exposed. Full width: step time of ${seconds(whole)}.`),
    table(null, [["Lane"], ["", "wide"], ["Busy", "number"], ["Overlapped", "number"], ["Exposed", "number"], ["Bytes", "number"],
      ["Operations", "number"]], rows.map(each => {
      const hidden = Math.max(0, each.busy - each.exposed);
      return [each.name, bar(`${each.name}: ${seconds(hidden)} overlapped, ${seconds(each.exposed)} exposed`, [
        { name: each.name, value: hidden, color: each.color }, { name: "exposed", value: each.exposed, color: "c2" }], longest),
      seconds(each.busy), each.bytes === undefined ? "" : seconds(hidden), each.bytes === undefined ? "" : seconds(each.exposed),
      each.bytes === undefined ? "" : bytes(each.bytes), each.bytes === undefined ? "" : count(each.count)];
    })));
}

function failure(job) {
  const { failure: last } = job;
  const before = job.failed_attempts || [];
  if (!last && !before.length) return null;
  return section("Failures",
    last && el("p", null, `${last.rank >= 0 || last.rank === undefined ? `Rank ${number(last.rank)}` : "No rank blamed"}` +
      `${last.node ? ` on ${last.node}` : ""}: `, el("span", { class: "bad" }, last.error || "")),
    last?.log_tail?.length && el("pre", { tabindex: 0 }, last.log_tail.join("\n")),
    before.length && table("Failed attempts", [["Attempt", "number"], ["Cause"], ["Node"], ["After step", "number"]],
      before.map(each => [String(each.attempt), short(each.cause, "FAILURE_CAUSE_").toLowerCase().replaceAll("_", " "),
        each.node || "", count(each.step)])));
}

function checkpoints(job) {
  const saved = [...(job.checkpoints || [])].reverse();
  if (!saved.length && !job.failed_checkpoint) return null;
  return section("Checkpoints",
    job.failed_checkpoint && el("p", { class: "bad" },
      `Checkpoint of step ${number(job.failed_checkpoint.step)} could not be written: ${job.failed_checkpoint.error}`),
    saved.length && table(null, [["After step", "number"], ["Committed", "when"], ["Size", "number"], ["Duration", "number"],
      ["Stall", "number"], ["Directory"]],
      saved.map(each => [count(each.step), date(each.unix_nanos), bytes(each.bytes), seconds(each.seconds),
        seconds(each.stall_seconds), each.path])));
}

function places(job) {
  const rows = job.placements || [];
  if (!rows.length) return null;
  return section("Placement", table(null, [["Node"], ["Ranks"], ["Devices"]], rows.map(each => {
    const first = number(each.first_rank);
    return [each.node, `${first} to ${first + number(each.ranks) - 1}`, (each.devices || []).join(", ")];
  })));
}

function events(job) {
  const rows = [...(job.events || [])].reverse();
  return section("Events", table(null, [["When", "when"], ["State"], ["Message"]],
    rows.map(event => [date(event.unix_nanos), badge(stateOf(event)), event.message || ""])));
}

export function draw({ job, points, missing }) {
  const since = job.stalled_since_unix_nanos;
  return [
    el("h1", null, job.id, el("span", { class: `badge state ${stateOf(job)}` }, stateOf(job).toLowerCase())),
    el("p", { class: "soft" }, whyOf(job)),
    number(since) > 0 && el("p", { class: "bad" }, `No step since ${date(since)}.`),
    (job.warnings || []).map(warning => el("p", { class: "wait" }, warning)),
    tiles(job), charts(job, points),
    missing > 0 && el("p", { class: "note" },
      `${count(missing)} steps are missing on all reachable nodes; see \`fsdpctl get ${job.id} --steps\`.`),
    stepTimelines(job, colorsOf(job), number(job.memory_plan?.peak_bytes)), lanes(job), memory(job), failure(job),
    checkpoints(job), places(job), events(job)];
}
