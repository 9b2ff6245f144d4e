// #/: all jobs, newest first, and the reasons of waiting jobs.
import { el, table } from "./dom.js";
import { count, date, large, loss, number, short } from "./numbers.js";

const GROUPS = {
  all: [],
  waiting: ["QUEUED", "PREFLIGHT", "PAUSED"],
  running: ["STARTING", "RUNNING", "STOPPING", "PAUSING", "CANCELLING"],
  ended: ["SUCCEEDED", "FAILED", "CANCELLED"],
};

export const stateOf = job => short(job.state, "JOB_STATE_");

export function badge(state) {
  return el("span", { class: `state ${state}` }, state.toLowerCase());
}

export const stepsOf = job => number((job.resolved || job.spec)?.train?.steps);  // 0: not known yet (train.epochs).
export const rate = step => number(step.step_seconds) > 0 ? number(step.tokens) / step.step_seconds : NaN;

function address(parameters, changes) {
  const given = Object.entries({ ...parameters, ...changes }).filter(([, value]) => value);
  return `#/${given.length ? "?" : ""}${new URLSearchParams(given)}`;
}

export const title = () => "Jobs";

export function load(ask, parameters) {
  return ask("ListJobs", {
    states: (GROUPS[parameters.show] || []).map(state => `JOB_STATE_${state}`),
    page_token: parameters.page || "", project: parameters.project || "", all_projects: !parameters.project,
  });
}

// The reason why it does not run, if any.
export function whyOf(job) {
  const { queue_position: place, remedy } = job.waiting || {};
  return [place ? `Queue position ${place}: ` : "", job.reason || "", remedy ? `. Remedy: ${remedy}` : ""].join("");
}

function row(job) {
  const step = job.last_step || {}, made = number(step.step);
  return [
    el("a", { href: `#/jobs/${encodeURIComponent(job.id)}` }, job.id), badge(stateOf(job)),
    `${count(made)} of ${stepsOf(job) ? count(stepsOf(job)) : "?"}`, made ? loss(step.loss) : "", made ? large(rate(step)) : "",
    job.project || "", job.submitter || "", date(job.create_unix_nanos), whyOf(job)];
}

const COLUMNS = [["Job", "id"], ["State", "id"], ["Step", "number"], ["Loss", "number"], ["Tokens/s", "number"], ["Project"], ["Submitter"],
  ["Submitted", "when"], ["Reason", "wide"]];

function filter(parameters) {
  const show = el("select", { "data-parameter": "show" }, Object.keys(GROUPS).map(group =>
    el("option", { value: group === "all" ? "" : group, selected: group === (parameters.show || "all") }, group)));
  return el("form", { role: "search" },
    el("label", null, "Show", show),
    el("label", null, "Project", el("input", { "data-parameter": "project", value: parameters.project || "", size: 14 })),
    el("label", null, "Name contains (this page)", el("input", { "data-parameter": "name", value: parameters.name || "", size: 18 })));
}

export function draw(answer, parameters) {
  const all = answer.jobs || [], wanted = all.filter(job => job.id.includes((parameters.name || "").trim()));
  const shown = wanted.length === all.length ? `${all.length} jobs, newest first` : `${wanted.length} of ${all.length} jobs on this page`;
  return [
    el("h1", null, "Jobs"), filter(parameters),
    el("section", null, wanted.length ? table(shown, COLUMNS, wanted.map(row)) : el("p", null, "No matching jobs.")),
    el("nav", { class: "pages", "aria-label": "Pages of jobs" },
      parameters.page && el("a", { href: address(parameters, { page: "" }) }, "Newest"),
      answer.next_page_token && el("a", { href: address(parameters, { page: answer.next_page_token }) }, "Older")),
  ];
}

// Filters are stored in the URL, so that they can be bookmarked and shared.
for (const kind of ["input", "change"]) {
  document.addEventListener(kind, event => {
    const name = event.target.dataset?.parameter;
    if (!name) return;
    const parameters = Object.fromEntries(new URLSearchParams(location.hash.split("?")[1] || ""));
    if ((parameters[name] || "") === event.target.value) return;
    location.replace(address(parameters, { [name]: event.target.value, page: name === "name" ? parameters.page : "" }));
  });
}
