// The table of ranks. Of many ranks only the rows that are seen are there, so that a thousand are no burden.

import { byId, bytes, count, element, microseconds, milliseconds, rankName, say, seconds, whole } from "./format.js";
import { FEW } from "./chart.js";

const WHOLE = 100; // so many rows are all there, seen or not
const BEYOND = 12; // rows that are there above and below those that are seen
const ORDER = { died: 0, silent: 1, connected: 2, ended: 3 };

const COLUMNS = [
  { title: "Rank", name: (view) => rankName(view), sort: (view) => [view.of ?? "", view.rank === null, view.rank ?? view.id] },
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
  #views = new Map();
  #shown = []; // those that match, in their order
  #rows = new Map();
  #spaces = [];
  #height = 28;
  #longest = 0;
  #widest = COLUMNS.map(() => "");
  #column = 0;
  #down = true;
  #table = byId("rank-table");
  #scroll = this.#table.parentElement;
  #buttons = [];
  #drawing = false;

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
    this.#table.tFoot.rows[0].append(element("td"), ...COLUMNS.map((_, index) => element(index === 0 ? "th" : "td")));
    byId("filter").addEventListener("input", () => {
      this.#scroll.scrollTop = 0;
      this.#arrange();
    });
    this.#scroll.addEventListener("scroll", () => this.#soon(), { passive: true });
    this.#table.tBodies[0].addEventListener("focusin", () => this.#soon());
    new ResizeObserver(() => this.#soon()).observe(this.#scroll);
    this.#mark();
  }

  // Other ranks are shown from now on.
  reset() {
    this.chosen.clear();
    this.#widest.fill("");
    this.#scroll.scrollTop = 0;
    this.update([]);
  }

  update(ranks) {
    this.#views = new Map(ranks.map((view) => [view.id, view]));
    for (const id of this.chosen) if (!this.#views.has(id)) this.chosen.delete(id);
    this.#longest = ranks.reduce((longest, view) => Math.max(longest, view.step_ms ?? 0), 1e-9);
    this.#table.classList.toggle("few", ranks.length <= FEW);
    this.#arrange();
  }

  #soon() {
    if (this.#drawing || this.#shown.length <= WHOLE) return;
    this.#drawing = true;
    requestAnimationFrame(() => {
      this.#drawing = false;
      this.#draw();
    });
  }

  // Puts the rows in their places that are seen, and the one that has the focus; the others are empty space.
  #draw() {
    const count = this.#shown.length;
    const all = count <= WHOLE;
    const above = Math.floor(this.#scroll.scrollTop / this.#height);
    const first = all ? 0 : Math.max(Math.min(above, count) - BEYOND, 0);
    const last = all ? count : Math.min(above + Math.ceil(this.#scroll.clientHeight / this.#height) + BEYOND, count);
    const focused = this.#table.tBodies[0].contains(document.activeElement) ? document.activeElement : null;
    const held = focused?.closest("tr").dataset.id;
    const heldAt = held === undefined ? -1 : this.#shown.findIndex((view) => view.id === held);
    const wanted = [];
    // With its neighbours, to which the tabulator key leads.
    const around = heldAt < 0 ? [] : [heldAt - 1, heldAt, heldAt + 1].filter((at) => at >= 0 && at < count);
    wanted.push(...around.filter((at) => at < first));
    for (let at = first; at < last; at += 1) wanted.push(at);
    wanted.push(...around.filter((at) => at >= last));
    const nodes = [];
    const kept = new Map();
    let next = 0;
    let spaces = 0;
    const space = (rows) => {
      if (rows) nodes.push(this.#space(spaces++, rows));
    };
    for (const at of wanted) {
      space(at - next);
      next = at + 1;
      const view = this.#shown[at];
      const row = this.#rows.get(view.id) ?? this.#made(view);
      kept.set(view.id, row);
      this.#write(row, view);
      if (all) row.node.removeAttribute("aria-rowindex");
      else row.node.setAttribute("aria-rowindex", at + 2);
      nodes.push(row.node);
    }
    space(count - next);
    this.#rows = kept;
    if (all) this.#table.removeAttribute("aria-rowcount");
    else this.#table.setAttribute("aria-rowcount", count + 1);
    if (all) this.#table.tHead.rows[0].removeAttribute("aria-rowindex");
    else this.#table.tHead.rows[0].setAttribute("aria-rowindex", 1);
    place(this.#table.tBodies[0], nodes);
    if (focused && document.activeElement !== focused && kept.has(held)) focused.focus({ preventScroll: true });
    this.#table.tFoot.hidden = all;
    if (!all) this.#measure(kept.values().next().value);
  }

  // The height that is left for rows that are not there, and the widths that columns keep while others come and go.
  #measure(row) {
    const height = row?.node.getBoundingClientRect().height;
    if (height && Math.abs(height - this.#height) > 0.01) {
      this.#height = height;
      this.#soon();
    }
    const cells = this.#table.tFoot.rows[0].cells;
    this.#widest.forEach((text, index) => say(cells[index + 1], text));
  }

  #space(number, rows) {
    this.#spaces[number] ??= element("tr", { className: "space", "aria-hidden": "true" }, element("td", { colSpan: COLUMNS.length + 1 }));
    this.#spaces[number].firstChild.style.height = `${rows * this.#height}px`;
    return this.#spaces[number];
  }

  #write(row, view) {
    const share = `${((100 * (view.step_ms ?? 0)) / this.#longest).toFixed(1)}%`;
    if (row.view === view && row.share === share) return;
    row.view = view;
    row.share = share;
    const factor = view.slow_factor === null ? "" : `slow, ${view.slow_factor.toFixed(1)}×`;
    COLUMNS.forEach((column, index) => {
      const text = column.name(view);
      if (row.texts[index] !== text) row.cells[index].textContent = row.texts[index] = text;
      const wide = column.title === "Step time" && factor ? `${text} ${factor}` : text;
      if (wide.length > this.#widest[index].length) this.#widest[index] = wide;
    });
    row.node.dataset.state = view.restoring ? "restoring" : view.state;
    row.node.classList.toggle("slow", view.slow_factor !== null);
    row.node.classList.toggle("losing", view.dropped > 0 || view.missing_frames > 0);
    say(row.factor, factor);
    row.bar.style.setProperty("--share", share);
    row.box.ariaLabel = `${rankName(view)} in the chart`;
  }

  #made(view) {
    const box = element("input", { type: "checkbox", checked: this.chosen.has(view.id) });
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
    node.dataset.id = view.id;
    return { node, box, cells, texts: COLUMNS.map(() => ""), factor, bar: nodes[4], view: null, share: "" };
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
    const keys = [...this.#views.values()].filter((view) => matches(view, text)).map((view) => ({ view, key: sort(view), rank: [view.rank ?? 0] }));
    const sign = this.#down ? 1 : -1;
    keys.sort((one, other) => sign * compare(one.key, other.key) || compare(one.rank, other.rank));
    this.#shown = keys.map(({ view }) => view);
    say(byId("shown"), text ? `${whole(this.#shown.length)} of ${whole(this.#views.size)}` : "");
    this.#draw();
  }
}

// Gives a node these children. Those that are in their place are not touched: the focus stays where it is.
function place(parent, nodes) {
  const wanted = new Set(nodes);
  for (const node of [...parent.children]) if (!wanted.has(node)) node.remove();
  let at = parent.firstChild;
  for (const node of nodes) {
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
  }
}

function matches(view, text) {
  if (!text) return true;
  if (/^\d+$/.test(text)) return String(view.rank) === text;
  const slow = view.slow_factor === null ? "" : "slow";
  return `${rankName(view)} ${view.host} ${view.state} ${slow}`.toLowerCase().includes(text);
}
