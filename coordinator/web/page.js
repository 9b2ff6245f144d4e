// Entry point of the web UI: routes, periodic refresh, and sign-in.
import { forgetTimelines } from "./steps.js";
import { el, patch } from "./dom.js";
import * as job from "./job.js";
import * as jobs from "./jobs.js";
import * as nodes from "./nodes.js";
import { date } from "./numbers.js";

const EVERY_MS = 2000, LIMIT_MS = 8000;
const TOKEN = "fsdpd-token";  // Key in the tab's session storage.
const main = document.getElementById("main"), connection = document.getElementById("connection");
const forget = document.getElementById("forget");
let turn = 0, timer = 0, lostSince = "", last = null, versionShown = false;

class Refused extends Error {
  constructor(status, { reason, message }) {
    super(message);
    this.status = status;
    this.reason = reason;
  }
}

async function ask(method, request) {
  const token = sessionStorage.getItem(TOKEN);
  const answer = await fetch(`api/${method}?q=${encodeURIComponent(JSON.stringify(request))}`, {
    headers: token ? { Authorization: `Bearer ${token}` } : {}, signal: AbortSignal.timeout(LIMIT_MS), cache: "no-store",
  });
  const body = await answer.json();
  if (!answer.ok) throw new Refused(answer.status, body);
  return body;
}

// A link that was cut within "%C3%A4" is invalid: the server reports that no job has this id.
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const parameters = Object.fromEntries(new URLSearchParams(query || ""));
  const [page, id] = path.split("/");
  if (page === "jobs" && id) return { view: job, id: decoded(id), parameters, at: "#/" };
  return page === "nodes" ? { view: nodes, parameters, at: "#/nodes" } : { view: jobs, parameters, at: "#/" };
}

function show(...children) {
  patch(main, el("main", { id: "main", tabindex: -1 }, children));
}

function draw() {
  if (last) show(last.view.draw(last.data, last.parameters));
}

function askForToken(why) {
  last = null;
  // An existing form keeps its input.
  const wrong = why.reason === "MISSING_TOKEN" ? null : el("p", { class: "bad", role: "alert" }, why.message);
  show(el("h1", null, "Sign in"),
    el("p", null, "This coordinator requires a token: the content of fsdpctl's --token-file. It is stored for this tab only."), wrong,
    el("form", { id: "sign-in" },
      el("label", null, "Token", el("input", { id: "token", type: "password", autocomplete: "off", required: true, size: 40 })),
      el("button", { type: "submit" }, "Sign in")));
  document.getElementById("token").focus();
}

function showError(error) {
  if (error.status === 401) return askForToken(error);
  last = null;
  const title = { NOT_LEADER: "Standby", JOB_NOT_FOUND: "Not found" }[error.reason] || "Request rejected";
  show(el("h1", null, title), el("p", { class: "bad", role: "alert" }, error.message));
}

// Errors that may pass: those of a coordinator that is busy, starting or stopping.
function isTransient(error) {
  return !(error instanceof Refused) || (error.status === 429 || error.status >= 500) && error.reason !== "NOT_LEADER";
}

// After a lost connection another version may answer.
async function showVersion() {
  versionShown = true;
  const { version } = await ask("GetVersion", {}).catch(() => ({ version: "" }));
  document.getElementById("version").textContent = `fsdpd ${version}`.trim();
}

function setConnectionStatus(text) {
  connection.className = text ? "lost" : "";
  if (connection.textContent !== text) connection.textContent = text;
}

function lost(error) {
  versionShown = false;
  lostSince ||= 1e6 * Date.now();
  const why = error instanceof Refused ? `: ${error.message}` : "";
  setConnectionStatus(`Connection lost since ${date(lostSince)}${why}; showing older data. Retrying.`);
}

async function refresh() {
  clearTimeout(timer);
  const mine = ++turn, { view, id, parameters } = route();
  let continues = true;
  try {
    const data = await view.load(ask, parameters, id);
    if (mine !== turn) return;
    lostSince = "";
    setConnectionStatus("");
    last = { view, data, parameters };
    draw();
    if (!versionShown) showVersion();
  } catch (error) {
    if (mine !== turn) return;
    if (isTransient(error)) lost(error);
    else {
      lostSince = "";
      setConnectionStatus("");
      showError(error);
      continues = error.status !== 401;  // Each retry would be recorded in the audit log.
    }
  }
  forget.hidden = !sessionStorage.getItem(TOKEN);
  if (continues) timer = setTimeout(refresh, EVERY_MS);
}

function navigate() {
  const { view, id, at } = route();
  document.title = `${view.title(null, id)} – fsdpd`;
  for (const link of document.querySelectorAll("header nav a")) {
    if (link.getAttribute("href") === at) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  refresh();
}

document.addEventListener("redraw", draw);
document.addEventListener("submit", event => {
  event.preventDefault();
  if (event.target.id !== "sign-in") return;
  const field = document.getElementById("token");
  sessionStorage.setItem(TOKEN, field.value.trim());
  forgetTimelines();
  field.value = "";
  refresh();
});
forget.addEventListener("click", () => {
  sessionStorage.removeItem(TOKEN);
  refresh();
});
document.querySelector(".skip").addEventListener("click", event => {
  event.preventDefault();
  main.focus();
});
addEventListener("hashchange", navigate);
navigate();
