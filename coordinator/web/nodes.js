// #/nodes: capacity of agents, the reasons why nodes accept no jobs, and preflight measurements.
import { el, section, table } from "./dom.js";
import { bytes, count, date, large, number, short } from "./numbers.js";

export const title = () => "Nodes";

export const load = ask => ask("ListNodes", {});

// The status as `fsdpctl nodes` prints it.
function status(node) {
  const connection = node.connected ? "ready" : node.left ? "left" : node.not_ready ? "not-ready" : "lost";
  if (!node.cordon) return connection;
  const closed = !node.cordon.drain ? "cordoned" : number(node.cordon.drain.empty_unix_nanos) > 0 ? "drained" : "draining";
  return node.connected ? closed : `${connection}, ${closed}`;
}

function state(node) {
  const open = node.connected && !node.cordon;
  if (open && node.in_preflight) return el("span", { class: "wait" }, "in preflight");
  return el("span", { class: open ? "good" : node.connected || node.not_ready ? "wait" : "bad" }, status(node));
}

function why(node) {
  const reasons = [];
  if (node.cordon) {
    reasons.push(`Cordoned ${date(node.cordon.unix_nanos)} by ${node.cordon.automatic ? "the coordinator" : "a user"}: ` +
      (node.cordon.reason || "no reason given"));
  }
  if (node.unconfirmed_jobs?.length)
    reasons.push(`lost with ranks of ${node.unconfirmed_jobs.join(", ")}, which may still run`);
  for (const job of node.stalled_jobs || []) reasons.push(`${job} makes no progress`);
  return reasons.join("; ");
}

function nodes(all) {
  return section("Agents", table(null, [["Node"], ["State"], ["Device"], ["Slots free", "number"], ["Memory per slot", "number"],
    ["Host memory", "number"], ["Agent"], ["Last seen", "when"], ["Reason", "wide"]], all.map(node => [
    node.name, state(node), short(node.device, "DEVICE_").toLowerCase(), `${number(node.free_slots)} of ${number(node.slots)}`,
    number(node.memory_bytes_per_slot) ? bytes(node.memory_bytes_per_slot) : "",
    number(node.host_memory_bytes) ? bytes(node.host_memory_bytes) : "", node.version || "",
    date(node.last_seen_unix_nanos), why(node)])));
}

function per(value, unit) {
  return number(value) ? `${large(value)}${unit}` : "";
}

function preflight(all) {
  const measured = all.filter(node => node.preflight);
  if (!measured.length) return section("Preflight", el("p", null, "No preflight measurements."));
  const faults = measured.flatMap(node => (node.preflight.violations || []).map(fault =>
    el("li", { class: node.preflight.accepted ? "wait" : "bad" }, `${node.name}: ${fault}`)));
  const errors = measured.filter(node => node.preflight.result?.error).map(node =>
    el("li", { class: "bad" }, `${node.name}: ${node.preflight.result.error}`));
  const rows = measured.flatMap(node => (node.preflight.result?.devices || []).map(device => [
    node.name, String(number(device.device)), device.name || "", per(device.matmul_flops, "FLOP/s"),
    per(device.memory_bytes_per_second, "B/s"), per(device.all_gather_bytes_per_second, "B/s"),
    device.uncorrected_ecc_errors === undefined ? "" : count(device.uncorrected_ecc_errors), date(node.preflight.unix_nanos)]));
  return section("Preflight", (faults.length > 0 || errors.length > 0) && el("ul", null, faults, errors),
    table("Measurements by device", [["Node"], ["Device", "number"], ["Name"], ["Matrix products", "number"], ["Memory", "number"],
      ["Ring", "number"], ["ECC errors", "number"], ["Measured", "when"]], rows));
}

export function draw(answer) {
  const all = answer.nodes || [];
  return [el("h1", null, "Nodes"), all.length ? [nodes(all), preflight(all)] : el("p", null, "No nodes are registered.")];
}
