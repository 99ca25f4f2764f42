// @ts-check
// Numbers, times and names as people read them.

/** @typedef {import("./api").RankView & { jobLabel?: string }} Rank A rank; `jobLabel` names its job where ranks of several are shown. */

const NONE = "–";

/** @param {number | null | undefined} value */
export function milliseconds(value) {
  if (value === null || value === undefined) return NONE;
  if (value >= 10000) return `${(value / 1000).toFixed(1)} s`;
  if (value >= 1000) return `${(value / 1000).toFixed(2)} s`;
  if (value >= 100) return `${value.toFixed(0)} ms`;
  if (value >= 1) return `${value.toFixed(value >= 10 ? 1 : 2)} ms`;
  return `${(value * 1000).toFixed(0)} µs`;
}

/** @param {number} value */
export function nanoseconds(value) {
  return value < 1000 ? `${Math.round(value)} ns` : milliseconds(value / 1e6);
}

/** @param {number | null} value in µs, of a bound */
export function clockBound(value) {
  return value === null ? NONE : `± ${milliseconds(value / 1000)}`;
}

/** @param {number | null | undefined} value from 0 to 1 */
export function percent(value) {
  return value === null || value === undefined ? NONE : `${(value * 100).toFixed(value < 0.0995 ? 1 : 0)} %`;
}

/**
 * @param {number} value
 * @param {number} base
 * @param {string[]} units
 */
function scaled(value, base, units) {
  let unit = 0;
  while (value >= base * 0.9995 && unit < units.length - 1) {
    value /= base;
    unit += 1;
  }
  const digits = unit === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits)}${units[unit]}`;
}

/** @param {number} value */
export const count = (value) => scaled(value, 1000, ["", " k", " M", " G", " T"]);
/** @param {number} value */
export const bytes = (value) => scaled(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB"]);

const grouped = new Intl.NumberFormat("en");
/** @param {number | null | undefined} value */
export const integer = (value) => (value === null || value === undefined ? NONE : grouped.format(value));

/** @param {number} value in s */
export function duration(value) {
  if (value < 60) return `${Math.floor(value)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min`;
  if (value < 86400) return `${Math.floor(value / 3600)} h`;
  return `${Math.floor(value / 86400)} d`;
}

/** @param {number} unix in s */
export const clock = (unix) => new Date(unix * 1000).toLocaleTimeString("en-GB");

/** @param {{ id: string, rank: number | null, jobLabel?: string }} view */
export function rankName(view) {
  const name = view.rank === null ? view.id : `rank ${view.rank}`;
  return view.jobLabel ? `${name} of ${view.jobLabel}` : name;
}
