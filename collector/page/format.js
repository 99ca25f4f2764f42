// Numbers, times and sizes as people read them, and the elements that show them.

export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 10000) return `${(value / 1000).toFixed(1)} s`;
  if (value >= 1000) return `${(value / 1000).toFixed(2)} s`;
  if (value >= 100) return `${value.toFixed(0)} ms`;
  if (value >= 1) return `${value.toFixed(value >= 10 ? 1 : 2)} ms`;
  return `${(value * 1000).toFixed(0)} µs`;
}

export function nanoseconds(value) {
  return value < 1000 ? `${Math.round(value)} ns` : milliseconds(value / 1e6);
}

export function microseconds(value) {
  return value === null ? "–" : `± ${milliseconds(value / 1000)}`;
}

function scaled(value, base, units) {
  let unit = 0;
  while (value >= base * 0.9995 && unit < units.length - 1) {
    value /= base;
    unit += 1;
  }
  const digits = unit === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits)}${units[unit]}`;
}

export const count = (value) => scaled(value, 1000, ["", " k", " M", " G", " T"]);
export const bytes = (value) => scaled(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB"]);

const grouped = new Intl.NumberFormat("en");
export const whole = (value) => (value === null || value === undefined ? "–" : grouped.format(value));

export function seconds(value) {
  if (value < 60) return `${Math.floor(value)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min`;
  if (value < 86400) return `${Math.floor(value / 3600)} h`;
  return `${Math.floor(value / 86400)} d`;
}

export const clock = (unix) => new Date(unix * 1000).toLocaleTimeString("en-GB");

export function rankName(view) {
  const name = view.rank === null ? view.id : `rank ${view.rank}`;
  return view.of ? `${name} of ${view.of}` : name;
}

// An element with properties and children. Text is only ever text: names come from the network.
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// Changes a text only if it differs, so that screen readers hear what changed and nothing else.
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function byId(id) {
  return document.getElementById(id);
}
