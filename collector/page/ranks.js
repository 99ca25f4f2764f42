// @ts-check
// The table of ranks.

import { fromAddress, toAddress } from "./address.js";
import { byId, element, find, setText } from "./dom.js";
import { bytes, clockBound, count, duration, integer, milliseconds, percent, rankName } from "./format.js";
import { VirtualRows } from "./virtual_rows.js";

/** @typedef {import("./format.js").Rank} Rank */
/** @typedef {(string | number | boolean)[]} SortKey */
/**
 * @typedef {object} Column
 * @property {string} title
 * @property {(view: Rank) => string} text
 * @property {(view: Rank) => SortKey} sort smaller ones come first
 * @property {string} [hint]
 * @property {boolean} [number]
 * @property {(view: Rank) => boolean} [optional] whether a rank has a value; a column without any is not shown
 */
/**
 * @typedef {import("./virtual_rows.js").Row & {
 *   box: HTMLInputElement, cells: HTMLElement[], slow: HTMLElement, bar: HTMLElement, view: Rank | null, share: string,
 * }} RankRow
 */

const STATES = { died: 0, silent: 1, connected: 2, ended: 3 };
const STEP_TIME = "Step time";

/**
 * A column of what not all programs record.
 * @param {string} title
 * @param {string} hint
 * @param {(view: Rank) => number | null} value
 * @param {(value: number) => string} text
 * @returns {Column}
 */
function signal(title, hint, value, text) {
  const known = (/** @type {Rank} */ view) => value(view) !== null;
  return { title, hint, number: true, text: (view) => (known(view) ? text(value(view) ?? 0) : "–"), sort: (view) => largest(value(view)), optional: known };
}

/** @type {Column[]} */
const COLUMNS = [
  { title: "Rank", text: rankName, sort: (view) => [view.jobLabel ?? "", view.rank === null, view.rank ?? view.id] },
  { title: "State", text: stateText, sort: (view) => [STATES[view.state], -view.silent_s] },
  { title: "Host", text: (view) => view.host, sort: (view) => [view.host] },
  { title: "Step", number: true, text: (view) => integer(view.step), sort: (view) => [view.step ?? -1] },
  { title: STEP_TIME, number: true, text: (view) => milliseconds(view.step_ms), sort: (view) => largest(view.step_ms) },
  {
    title: "Own",
    hint: "time of a step in which the rank did not wait for others",
    number: true,
    text: (view) => milliseconds(view.own_ms),
    sort: (view) => largest(view.own_ms),
  },
  { title: "Last", number: true, text: (view) => milliseconds(view.last_step_ms), sort: (view) => largest(view.last_step_ms) },
  signal("CPU", "processor time of the thread that steps, per step time", (view) => view.cpu_share, percent),
  signal("Input", "share of a step that loading data takes", (view) => view.data_share, percent),
  signal("Comm.", "share of a step that communication takes", (view) => view.communication_share, percent),
  signal("Memory", "memory of the process (resident set)", (view) => view.resident_bytes, bytes),
  { title: "Events/s", number: true, text: (view) => count(view.events_per_s), sort: (view) => largest(view.events_per_s) },
  { title: "Data/s", number: true, text: (view) => bytes(view.bytes_per_s), sort: (view) => largest(view.bytes_per_s) },
  { title: "Events", number: true, text: (view) => count(view.events), sort: (view) => largest(view.events) },
  { title: "Lost", number: true, text: lostText, sort: (view) => [-view.dropped, -view.missing_frames] },
  { title: "Clock", number: true, text: (view) => clockBound(view.clock_bound_us), sort: (view) => largest(view.clock_bound_us) },
  { title: "Windows", number: true, text: (view) => integer(view.windows), sort: (view) => largest(view.windows) },
  { title: "Starts", number: true, text: (view) => integer(view.incarnation), sort: (view) => largest(view.incarnation) },
];

/** @param {number | null | undefined} value @returns {SortKey} */
function largest(value) {
  return [-(value ?? -1)];
}

/** @param {Rank} view */
function stateText(view) {
  if (view.restoring) return "reading its file";
  if (view.state === "silent") return `silent for ${duration(view.silent_s)}`;
  if (view.state === "died") return `died ${duration(view.silent_s)} ago`;
  return view.state;
}

/** @param {Rank} view */
function lostText(view) {
  const frames = view.missing_frames ? `, ${integer(view.missing_frames)} frames` : "";
  return view.dropped || frames ? `${count(view.dropped)}${frames}` : "0";
}

/** @param {SortKey} one @param {SortKey} other */
function compare(one, other) {
  for (let at = 0; at < one.length; at += 1) {
    if (one[at] < other[at]) return -1;
    if (one[at] > other[at]) return 1;
  }
  return 0;
}

export class RankTable {
  /** Ids of the chosen ranks: they have a line in the chart, and are those to record. */
  chosen = new Set();
  /** @type {Map<string, Rank>} */
  #views = new Map();
  #columns = COLUMNS.filter((column) => !column.optional);
  #longest = 0;
  #sort = "Rank";
  #reverse = false;
  #table = byId("rank-table", HTMLTableElement);
  #filter = byId("filter", HTMLInputElement);
  /** @type {VirtualRows<Rank, RankRow>} */
  #rows = new VirtualRows(this.#table, {
    key: (view) => view.id,
    create: (view) => this.#createRow(view),
    write: (row, view) => this.#writeRow(row, view),
  });
  #onChoice;
  #onOpen;

  /**
   * @param {() => void} onChoice other ranks are chosen
   * @param {(id: string) => void} onOpen a rank is to be shown by itself
   */
  constructor(onChoice, onOpen) {
    this.#onChoice = onChoice;
    this.#onOpen = onOpen;
    this.#filter.addEventListener("input", () => {
      toAddress({ filter: this.#filter.value });
      find(document, ".ranks").scrollTop = 0;
      this.#arrange();
    });
    byId("clear-choice").addEventListener("click", () => {
      this.choose([...this.chosen], false);
      this.#filter.focus(); // the button is hidden now
    });
    this.restore();
  }

  /** Takes the filter, the order and the chosen ranks from the address. */
  restore() {
    this.#filter.value = fromAddress("filter") ?? "";
    const sort = fromAddress("sort") ?? "";
    this.#reverse = sort.startsWith("-");
    this.#sort = COLUMNS.find((column) => column.title === sort.replace(/^-/, ""))?.title ?? "Rank";
    this.chosen = new Set(fromAddress("ranks")?.split(",").filter(Boolean));
    this.#head();
    this.#arrange();
    this.#showChoice();
  }

  /** Other ranks are shown from now on. */
  reset() {
    this.chosen.clear();
    this.#rows.clear();
    find(document, ".ranks").scrollTop = 0;
    this.update([]);
  }

  /** @param {Rank[]} ranks */
  update(ranks) {
    this.#views = new Map(ranks.map((view) => [view.id, view]));
    this.#longest = ranks.reduce((longest, view) => Math.max(longest, view.step_ms ?? 0), 1e-9);
    this.#table.classList.toggle("single", ranks.length < 2); // nothing to choose from
    const columns = COLUMNS.filter((column) => !column.optional || ranks.some(column.optional));
    if (columns.length !== this.#columns.length || columns.some((column, at) => column !== this.#columns[at])) {
      this.#columns = columns;
      this.#head();
    }
    this.#arrange();
    this.#showChoice();
  }

  /** The chosen ranks that there are. */
  chosenViews() {
    return [...this.chosen].flatMap((id) => this.#views.get(id) ?? []);
  }

  /**
   * Chooses ranks, or no longer; the first one of them is scrolled to.
   * @param {string[]} ids
   * @param {boolean} [on]
   */
  choose(ids, on = true) {
    for (const id of ids) {
      if (on) this.chosen.add(id);
      else this.chosen.delete(id);
    }
    this.#arrange();
    if (on && ids.length) this.#rows.reveal(ids[0]);
    this.#choiceChanged();
  }

  #choiceChanged() {
    toAddress({ ranks: [...this.chosen].join(",") });
    this.#showChoice();
    this.#onChoice();
  }

  #showChoice() {
    const chosen = this.chosenViews().length;
    byId("clear-choice").hidden = !chosen;
    setText(byId("clear-choice"), `Clear choice (${integer(chosen)})`);
  }

  // The head, for these columns and this order. Rows of other columns are forgotten.
  #head() {
    const line = find(this.#table, "thead tr", HTMLTableRowElement);
    const titles = this.#columns.map((column) => column.title);
    if ([...line.querySelectorAll("button")].map((button) => button.textContent).join() !== titles.join()) {
      this.#rows.clear();
      line.replaceChildren(
        element("th", { scope: "col" }, element("span", { className: "hidden" }, "Chosen")),
        ...this.#columns.map((column) => {
          const button = element("button", { type: "button", title: column.hint ?? "" }, column.title);
          button.addEventListener("click", () => this.#sortBy(column.title));
          return element("th", { scope: "col", className: column.number ? "number" : "" }, button);
        }),
      );
    }
    titles.forEach((title, at) => {
      const head = line.cells[at + 1];
      if (title === this.#sort) head.setAttribute("aria-sort", this.#reverse ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  }

  /** @param {string} title of a column */
  #sortBy(title) {
    this.#reverse = this.#sort === title && !this.#reverse;
    this.#sort = title;
    toAddress({ sort: this.#reverse ? `-${title}` : title === "Rank" ? null : title });
    this.#head();
    this.#arrange();
  }

  #arrange() {
    const text = this.#filter.value.trim().toLowerCase();
    const { sort } = this.#columns.find((column) => column.title === this.#sort) ?? COLUMNS[0];
    const views = [...this.#views.values()].filter((view) => matches(view, text));
    const keyed = views.map((view) => ({ view, key: sort(view) }));
    const sign = this.#reverse ? -1 : 1;
    keyed.sort((one, other) => sign * compare(one.key, other.key) || (one.view.rank ?? 0) - (other.view.rank ?? 0));
    setText(byId("shown"), text ? `${integer(views.length)} of ${integer(this.#views.size)}` : "");
    this.#rows.show(keyed.map(({ view }) => view));
  }

  /** @param {RankRow} row @param {Rank} view */
  #writeRow(row, view) {
    const chosen = this.chosen.has(view.id);
    row.box.checked = chosen;
    row.node.classList.toggle("chosen", chosen);
    const share = `${((100 * (view.step_ms ?? 0)) / this.#longest).toFixed(1)}%`;
    if (row.view === view && row.share === share) return;
    row.view = view;
    row.share = share;
    const slow = view.slow ? "slow" : "";
    this.#columns.forEach((column, index) => {
      const text = column.text(view);
      setText(row.cells[index], text);
      row.texts[index + 1] = column.title === STEP_TIME && slow ? `${text} ${slow}` : text;
    });
    row.node.dataset.state = view.restoring ? "restoring" : view.state;
    row.node.classList.toggle("slow", view.slow);
    row.node.classList.toggle("losing", view.dropped > 0 || view.missing_frames > 0);
    setText(row.slow, slow);
    row.bar.style.setProperty("--share", share);
    row.box.ariaLabel = `Choose ${rankName(view)}`;
  }

  /** @param {Rank} view @returns {RankRow} */
  #createRow(view) {
    const box = element("input", { type: "checkbox" });
    box.addEventListener("change", () => {
      if (box.checked) this.chosen.add(view.id);
      else this.chosen.delete(view.id);
      node.classList.toggle("chosen", box.checked);
      this.#choiceChanged();
    });
    const name = element("button", { type: "button" });
    name.addEventListener("click", () => this.#onOpen(view.id));
    const slow = element("strong", { className: "slow-word" });
    const cells = this.#columns.map((_, index) => (index === 0 ? name : element("span")));
    const bar = element("td", { className: "number bar-cell" });
    const nodes = this.#columns.map((column, index) => {
      if (index === 0) return element("th", { scope: "row" }, cells[index]);
      if (column.title === STEP_TIME) {
        bar.append(cells[index], " ", slow);
        return bar;
      }
      const word = { State: "state", Lost: "lost" }[column.title] ?? "";
      return element("td", { className: `${column.number ? "number" : ""} ${word}`.trim() }, cells[index]);
    });
    const node = element("tr", {}, element("td", {}, box), ...nodes);
    return { node, box, cells, texts: ["", ...this.#columns.map(() => "")], slow, bar, view: null, share: "" };
  }
}

/** @param {Rank} view @param {string} text */
function matches(view, text) {
  if (!text) return true;
  if (/^\d+$/.test(text)) return String(view.rank) === text;
  const slow = view.slow ? "slow" : "";
  return `${rankName(view)} ${view.host} ${view.state} ${slow}`.toLowerCase().includes(text);
}
