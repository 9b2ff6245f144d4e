// Step timelines of a job: the planned one, available before a rank runs, and the newest one that rank 0 measured.
import { el, section } from "./dom.js";
import { count, number, seconds } from "./numbers.js";
import { drawTimelines } from "./timeline.js";

// Retry interval after an answer that may change. Planning takes seconds of the coordinator's time, so its interval doubles.
const AGAIN_MS = 30000, RARELY_MS = 16 * AGAIN_MS;
const plans = new Map();  // By job: {attempt, timeline, note, wait, until}. Valid until `until`.
// By job: {attempt, step, timeline, note, until}. `step` is the job's newest step at that time.
const measurements = new Map();

// Another user may see other data.
export function forgetTimelines() {
  plans.clear();
  measurements.clear();
}

// Instructions that take no time are not drawn.
function plannedRuns({ instructions = [], prediction }) {
  const spans = prediction.timeline?.spans || [];
  return instructions.map(({ op, unit, micro_batch, lane }, at) => ({
    lane, name: [op, unit, number(micro_batch) >= 0 && `mb ${number(micro_batch)}`].filter(Boolean).join(" "),
    start: number(spans[at]?.start_seconds), seconds: number(spans[at]?.seconds),
  })).filter(run => run.seconds > 0);
}

const memoryOf = ({ components = [], memory = [] }) =>
  ({ components, memory: memory.map(sample => ({ start: number(sample.start_seconds), bytes: sample.bytes.map(number) })) });

function planned(plan) {
  return { name: "planned", seconds: number(plan.prediction.step_seconds), runs: plannedRuns(plan),
    ...memoryOf(plan.prediction.timeline || {}) };
}

function noteOf(plan) {
  const suffix = plan.stages?.length ? ", stage with the highest memory" : "";
  return `Estimated step time: ${seconds(plan.prediction.step_seconds)} (profile ${plan.prediction.profile.name}${suffix}).`;
}

// A new attempt may have fewer ranks, and hence another plan.
export async function planTimeline(ask, { id, attempt }) {
  const known = plans.get(id);
  if (known && known.attempt === attempt && Date.now() < known.until) return;
  const wait = known && known.attempt === attempt ? Math.min(2 * known.wait, RARELY_MS) : AGAIN_MS;
  const asked = { attempt, wait, until: Infinity, timeline: known?.timeline, note: known?.note || "Computing the plan." };
  plans.set(id, asked);
  try {
    const { plan } = await ask("PlanJob", { id });
    Object.assign(asked, { timeline: planned(plan), note: noteOf(plan) });
  } catch (error) {
    const transient = !(error.status < 500) || error.status === 429;
    Object.assign(asked, { timeline: null, note: `Plan not available: ${error.message}`,
      until: transient ? Date.now() + wait : Infinity });
  }
  document.dispatchEvent(new Event("redraw"));
}

function measured({ step_seconds, runs = [], ...timeline }) {
  return { name: "measured", seconds: number(step_seconds), ...memoryOf(timeline), runs: runs.map(run => ({
    lane: run.lane, name: run.instruction, start: number(run.start_seconds), seconds: number(run.seconds) })) };
}

function noteOfMeasured({ timeline, attempt }, job) {
  const suffix = number(attempt) === number(job.attempt) ? "" : ` of attempt ${number(attempt)}`;
  const left = number(timeline.runs_omitted);
  return `Measured by rank 0: step ${count(timeline.step)}${suffix}, ${seconds(timeline.step_seconds)}` +
    `${left ? `, without the shortest ${count(left)} instructions` : ""}.`;
}

// Loads the newest measured step if the job has made one since, or if it was not reported yet.
export async function measureTimeline(ask, job) {
  const step = number(job.last_step?.step), { id, attempt } = job, known = measurements.get(id);
  if (!step || known && known.step === step && known.attempt === attempt && Date.now() < known.until) return;
  try {
    const response = await ask("GetStepTimeline", { id });
    const until = number(response.timeline.step) < step ? Date.now() + AGAIN_MS : Infinity;
    measurements.set(id, { attempt, step, until, timeline: measured(response.timeline), note: noteOfMeasured(response, job) });
  } catch (error) {
    if (error.status !== 404) return;
    measurements.set(id, { attempt, step, until: Date.now() + AGAIN_MS, note: "No measured step is available." });
  }
}

// `colorOf`: color of a memory component. `peak`: planned peak in bytes.
export function stepTimelines(job, colorOf, peak) {
  const sources = [plans, measurements].map(each => each.get(job.id)).filter(Boolean);
  const timelines = sources.map(source => source.timeline).filter(Boolean);
  return section("Step timeline", sources.map(source => el("p", { class: "soft" }, source.note)),
    timelines.length > 0 && drawTimelines(timelines, colorOf, peak));
}
