// The table of ranks: rows are kept, and only what has changed is touched, so that a thousand ranks are no burden.

import { byId, bytes, count, element, microseconds, milliseconds, rankName, say, seconds, whole } from "./format.js";
import { FEW } from "./chart.js";

const ORDER = { died: 0, silent: 1, connected: 2, ended: 3 };

const COLUMNS = [
  { title: "Rank", name: (view) => rankName(view), sort: (view) => [view.rank === null, view.rank ?? view.id] },
  { title: "State", name: state, sort: (view) => [ORDER[view.state], -view.silent_s] },
  { title: "Host", name: (view) => view.host, sort: (view) => [view.host] },
  { title: "Step", number: true, name: (view) => whole(view.step), sort: (view) => [view.step ?? -1] },
  { title: "Step time", number: true, name: (view) => milliseconds(view.step_ms), sort: (view) => [-(view.step_ms ?? -1)] },
  { title: "Own", hint: "of a step, the time in which the rank did not wait for others", number: true, name: (view) => milliseconds(view.own_ms), sort: (view) => [-(view.own_ms ?? -1)] },
  { title: "Last", number: true, name: (view) => milliseconds(view.last_step_ms), sort: (view) => [-(view.last_step_ms ?? -1)] },
  { title: "Events/s", number: true, name: (view) => count(view.events_per_s), sort: (view) => [-view.events_per_s] },
  { title: "Data/s", number: true, name: (view) => bytes(view.bytes_per_s), sort: (view) => [-view.bytes_per_s] },
  { title: "Events", number: true, name: (view) => count(view.events), sort: (view) => [-view.events] },
  { title: "Lost", number: true, name: lost, sort: (view) => [-view.dropped, -view.missing_frames] },
  { title: "Clock", number: true, name: (view) => microseconds(view.clock_bound_us), sort: (view) => [-(view.clock_bound_us ?? -1)] },
  { title: "Windows", number: true, name: (view) => whole(view.windows), sort: (view) => [-view.windows] },
  { title: "Starts", number: true, name: (view) => whole(view.incarnation), sort: (view) => [-view.incarnation] },
];

function state(view) {
  if (view.restoring) return "reading its file";
  if (view.state === "silent") return `silent for ${seconds(view.silent_s)}`;
  if (view.state === "died") return `died ${seconds(view.silent_s)} ago`;
  return view.state;
}

function lost(view) {
  const frames = view.missing_frames ? `, ${whole(view.missing_frames)} frames` : "";
  return view.dropped || frames ? `${count(view.dropped)}${frames}` : "0";
}

function compare(one, other) {
  for (let at = 0; at < one.length; at += 1) {
    if (one[at] < other[at]) return -1;
    if (one[at] > other[at]) return 1;
  }
  return 0;
}

export class RankTable {
  #rows = new Map();
  #column = 0;
  #down = true;
  #table = byId("rank-table");
  #buttons = [];

  // `changed`: other ranks are to be in the chart; `open`: a rank is to be shown by itself.
  constructor(changed, open) {
    this.chosen = new Set();
    this.changed = changed;
    this.open = open;
    const head = this.#table.querySelector("thead tr");
    head.append(element("th", { scope: "col" }, element("span", { className: "hidden" }, "In the chart")));
    COLUMNS.forEach((column, index) => {
      const button = element("button", { type: "button", title: column.hint ?? "" }, column.title);
      button.addEventListener("click", () => this.#sortBy(index));
      head.append(element("th", { scope: "col", className: column.number ? "number" : "" }, button));
    });
    this.#buttons = [...head.querySelectorAll("button")];
    byId("filter").addEventListener("input", () => this.#arrange());
    this.#mark();
  }

  update(ranks) {
    const longest = Math.max(...ranks.map((view) => view.step_ms ?? 0), 1e-9);
    for (const view of ranks) this.#row(view, longest);
    const known = new Set(ranks.map((view) => view.id));
    for (const [id, row] of this.#rows) {
      if (known.has(id)) continue;
      row.node.remove();
      this.#rows.delete(id);
    }
    this.#table.classList.toggle("few", ranks.length <= FEW);
    this.#arrange();
  }

  #row(view, longest) {
    let row = this.#rows.get(view.id);
    if (!row) {
      row = this.#made(view);
      this.#rows.set(view.id, row);
    }
    const share = `${((100 * (view.step_ms ?? 0)) / longest).toFixed(1)}%`;
    if (row.view === view && row.share === share) return;
    row.view = view;
    row.share = share;
    COLUMNS.forEach((column, index) => say(row.cells[index], column.name(view)));
    row.node.dataset.state = view.restoring ? "restoring" : view.state;
    row.node.classList.toggle("slow", view.slow_factor !== null);
    row.node.classList.toggle("losing", view.dropped > 0 || view.missing_frames > 0);
    say(row.factor, view.slow_factor === null ? "" : `slow, ${view.slow_factor.toFixed(1)}×`);
    row.bar.style.setProperty("--share", share);
  }

  #made(view) {
    const box = element("input", { type: "checkbox", ariaLabel: `${rankName(view)} in the chart` });
    box.addEventListener("change", () => {
      if (box.checked) this.chosen.add(view.id);
      else this.chosen.delete(view.id);
      this.changed();
    });
    const name = element("button", { type: "button" });
    name.addEventListener("click", () => this.open(view.id));
    const cells = COLUMNS.map((_, index) => (index === 0 ? name : element("span", {})));
    const factor = element("strong", { className: "factor" });
    const nodes = COLUMNS.map((column, index) => {
      const cell = element(index === 0 ? "th" : "td", { className: column.number ? "number" : "" }, cells[index]);
      if (index === 0) cell.scope = "row";
      if (column.title === "State") cell.classList.add("state");
      if (column.title === "Step time") {
        cell.classList.add("bar-cell");
        cell.append(" ", factor);
      }
      if (column.title === "Lost") cell.classList.add("lost");
      return cell;
    });
    const node = element("tr", {}, element("td", {}, box), ...nodes);
    return { node, cells, factor, bar: nodes[4], view: null, share: "" };
  }

  #sortBy(index) {
    this.#down = this.#column === index ? !this.#down : true;
    this.#column = index;
    this.#mark();
    this.#arrange();
  }

  #mark() {
    this.#buttons.forEach((button, index) => {
      const here = index === this.#column;
      const head = button.closest("th");
      if (here) head.setAttribute("aria-sort", this.#down ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
  }

  #arrange() {
    const text = byId("filter").value.trim().toLowerCase();
    const sort = COLUMNS[this.#column].sort;
    const shown = [...this.#rows.values()].filter(({ view }) => matches(view, text));
    const sign = this.#down ? 1 : -1;
    shown.sort((one, other) => sign * compare(sort(one.view), sort(other.view)) || compare([one.view.rank ?? 0], [other.view.rank ?? 0]));
    const body = this.#table.querySelector("tbody");
    const nodes = shown.map((row) => row.node);
    const same = nodes.length === body.children.length && nodes.every((node, index) => body.children[index] === node);
    if (!same) body.replaceChildren(...nodes);
    const all = this.#rows.size;
    say(byId("shown"), text ? `${whole(shown.length)} of ${whole(all)}` : "");
  }
}

function matches(view, text) {
  if (!text) return true;
  if (/^\d+$/.test(text)) return String(view.rank) === text;
  const slow = view.slow_factor === null ? "" : "slow";
  return `${rankName(view)} ${view.host} ${view.state} ${slow}`.toLowerCase().includes(text);
}
