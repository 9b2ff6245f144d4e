// Formatting of numbers and dates. protobuf's JSON encodes 64-bit integers as strings and omits zeros.

export const number = value => Number(value || 0);

const DIGITS = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function count(value) {
  return WHOLE.format(number(value));
}

function scaled(value, base, units) {
  let at = 0;
  while (Math.abs(value) >= base && at + 1 < units.length) { value /= base; ++at; }
  return `${Math.abs(value) >= 100 ? WHOLE.format(value) : DIGITS.format(value)} ${units[at]}`.trim();
}

export const bytes = value => scaled(number(value), 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
export const large = value => scaled(number(value), 1000, ["", "k", "M", "G", "T", "P"]);

export function loss(value) {
  const digits = number(value);
  return Number.isFinite(digits) ? digits.toPrecision(5) : String(digits);
}

export function seconds(value) {
  const all = number(value);
  if (all < 1e-3) return `${DIGITS.format(all * 1e6)} µs`;
  if (all < 1) return `${DIGITS.format(all * 1e3)} ms`;
  if (all < 120) return `${DIGITS.format(all)} s`;
  const minutes = Math.floor(all / 60), hours = Math.floor(minutes / 60);
  if (hours >= 48) return `${Math.floor(hours / 24)} d ${hours % 24} h`;
  return hours ? `${hours} h ${minutes % 60} min` : `${minutes} min ${Math.round(all % 60)} s`;
}

const milliseconds = nanos => number(nanos) / 1e6;

export function date(nanos) {
  if (!number(nanos)) return "";
  const when = new Date(milliseconds(nanos));
  const day = when.toDateString() === new Date().toDateString() ? "" : `${when.toLocaleDateString("sv")} `;
  return day + when.toLocaleTimeString("sv");
}

// Time from `begin` to `end`, or until now.
export function between(begin, end) {
  return seconds(Math.max(0, ((number(end) ? milliseconds(end) : Date.now()) - milliseconds(begin)) / 1e3));
}

// JOB_STATE_RUNNING without its prefix.
export const short = (name, prefix) => (name || "").replace(prefix, "");
