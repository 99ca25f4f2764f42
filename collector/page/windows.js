// @ts-check
// The windows, and the dialog of one: its ranks with their files, and what a rank did in it.

import { button, byId, element, find, setText } from "./dom.js";
import { bytes, clock, integer, nanoseconds } from "./format.js";
import { download, json, openInPerfetto, withQuery } from "./server.js";
import { VirtualRows } from "./virtual_rows.js";

/** @typedef {import("./api").WindowView} WindowView */
/** @typedef {import("./api").WindowFacts} WindowFacts */
/** @typedef {{ rank: string, name: string, stream: string, window: WindowFacts }} RankWindow `name` heads its row */

const EVERY = 3000; // ms between two requests
const NAMES = 50; // rows of a table of names
const DIALOG_ROWS = 30; // a longer table of the dialog has only the rows in view: each has up to five buttons
/** @type {Record<string, string>} */
const TITLES = { chrome: "Chrome trace", perfetto: "Perfetto trace", parquet: "Parquet table" };
const COLUMNS = ["Window", "Began", "Ranks", "Steps", "Events", "Lost", "State", "Files"];
const HEAD = ["Steps", "Events", "Lost", "State", "Files"];
const WORDS = new Set(["Window", "Rank", "Began", "State", "Files", "Name", "Category", "Host", "Records", "Answer"]);
const STATUS = "window-status"; // of the dialog
const LIST_STATUS = "windows-status"; // of the list

/** @param {string} kind */
const title = (kind) => TITLES[kind] ?? kind;

export class Windows {
  #requestedAt = -Infinity;
  #version = "";
  /** @type {{ rank: string[], merged: string[] }} kinds of files that are offered */
  #files = { rank: [], merged: [] };
  #severalJobs = false;
  #turn = 0; // answers to requests of an earlier one are not shown
  #dialog = byId("window", HTMLDialogElement);
  /** @type {VirtualRows<RankWindow>[]} of the dialog */
  #tables = [];

  constructor() {
    find(byId("window-table"), "thead tr").append(...COLUMNS.map(headCell));
    this.#dialog.addEventListener("close", () => this.#clearDialog());
  }

  /** Windows of another job are shown from now on. */
  reset() {
    this.#turn += 1;
    this.#requestedAt = -Infinity;
    find(byId("window-table"), "tbody").replaceChildren();
    byId("window-list").hidden = true;
    byId("no-windows").hidden = true;
    setText(byId(LIST_STATUS), "");
  }

  /**
   * Asks for the windows again, if there may be others.
   * @param {import("./api").JobView} job
   * @param {import("./format.js").Rank[]} ranks
   * @param {string | null} chosen the job whose windows are shown, null: of all
   */
  async update(job, ranks, chosen) {
    const closed = ranks.reduce((sum, view) => sum + view.windows, 0);
    const version = `${ranks.length} ${closed} ${job.connected} ${job.storage?.discarded_events}`;
    const now = performance.now();
    const age = now - this.#requestedAt;
    if (document.hidden || age < EVERY || (version === this.#version && age < 5 * EVERY)) return;
    this.#requestedAt = now;
    this.#version = version;
    this.#files = { rank: job.rank_files, merged: job.merged_files };
    const turn = this.#turn;
    /** @type {WindowView[]} */
    const windows = await json(withQuery("/v1/windows", { limit: 30, job: chosen }));
    if (turn !== this.#turn) return;
    this.#severalJobs = new Set(windows.map((window) => window.job_id)).size > 1;
    byId("no-windows").hidden = windows.length > 0;
    byId("window-list").hidden = windows.length === 0;
    const body = find(byId("window-table"), "tbody");
    const focused = body.contains(document.activeElement) ? document.activeElement?.ariaLabel : null;
    body.replaceChildren(...windows.map((window) => this.#row(window)));
    // The focus stays on its button, though that is a new one.
    if (focused) [...body.querySelectorAll("button")].find((one) => one.ariaLabel === focused)?.focus();
  }

  /** @param {WindowView} window */
  #row(window) {
    const state = window.open ? `open in ${window.open}` : window.incomplete ? `cut short in ${window.incomplete}` : "complete";
    const cells = [
      clock(window.started_ns / 1e9),
      integer(window.ranks),
      integer(window.steps),
      integer(window.events),
      integer(window.dropped),
      state + evicted(window),
    ];
    const name = `window ${window.index}${this.#severalJobs ? ` of ${window.job_id}` : ""}`;
    const address = (/** @type {string} */ kind) => withQuery(`/v1/windows/${window.index}/${kind}`, { job: window.job_id });
    const files = this.#files.merged.map((kind) =>
      button(title(kind), `${title(kind)} of ${name}, all ranks`, () => download(address(kind)), LIST_STATUS),
    );
    if (this.#files.merged.includes("perfetto")) {
      const open = () => openInPerfetto(address("perfetto"), `${name}, all ranks`, (text) => setText(byId(LIST_STATUS), text));
      files.push(button("open in ui.perfetto.dev", `Open ${name}, all ranks, in ui.perfetto.dev`, open, LIST_STATUS));
    }
    return element(
      "tr",
      {},
      element("th", { scope: "row" }, `${window.index}`, ...(this.#severalJobs ? [element("p", { className: "quiet" }, window.job_id)] : [])),
      ...cells.map((text, index) => element("td", { className: classOf(COLUMNS[index + 1]) }, text)),
      element("td", {}, button("ranks …", `Ranks of ${name}`, () => this.#openWindow(window, name), STATUS), ...files),
    );
  }

  /**
   * @param {WindowView} window
   * @param {string} name
   */
  async #openWindow({ index, job_id }, name) {
    this.#open(name.replace("w", "W"));
    /** @type {import("./api").WindowDetail} */
    const { ranks } = await json(withQuery(`/v1/windows/${index}`, { job: job_id }));
    setText(byId(STATUS), "");
    const restarted = new Set(ranks.filter(({ start }) => start > 1).map(({ rank }) => rank));
    const items = ranks.map(({ rank, start, stream, window }) => {
      const row = restarted.has(rank) ? `${rank}, start ${start}` : rank;
      return { rank: row, name: row, stream, window };
    });
    this.#append("Rank", items);
  }

  /**
   * Shows a rank by itself: each of its starts, with its windows.
   * @param {string} id
   */
  async openRank(id) {
    this.#open(id);
    try {
      /** @type {import("./api").RankDetail} */
      const { rank, streams } = await json(`/v1/ranks/${encodeURIComponent(id)}`);
      setText(byId(STATUS), `${rank.host}, process ${rank.pid}`);
      for (const one of streams) {
        const lost = Object.entries(one.dropped).map(([why, events]) => `${integer(events)} lost (${why})`);
        if (one.left_out_steps) lost.push(`no facts of ${integer(one.left_out_steps)} steps`);
        if (one.left_out_records) lost.push(`${integer(one.left_out_records)} records left out`);
        const facts = [one.state, `${integer(one.events)} events`, bytes(one.bytes), ...lost];
        const head = element("h3", {}, `Start ${one.start}, ${clock(one.seen_first_ns / 1e9)}: ${facts.join(", ")} `);
        const journal = () => download(`/v1/streams/${one.stream}/journal`);
        head.append(button("journal", `Journal of start ${one.start}`, journal, STATUS));
        byId("window-body").append(head);
        const items = one.windows.map((window) => ({ rank: id, name: `${window.index}`, stream: one.stream, window }));
        if (items.length) this.#append("Window", items);
      }
    } catch (error) {
      setText(byId(STATUS), /** @type {Error} */ (error).message);
    }
  }

  // Adds a table to the dialog.
  /**
   * @param {string} first title of its first column
   * @param {RankWindow[]} items
   */
  #append(first, items) {
    const created = table([first, ...HEAD], []);
    byId("window-body").append(created);
    const rows = new VirtualRows(created, {
      key: (/** @type {RankWindow} */ item) => `${item.stream} ${item.window.index}`,
      create: (item) => this.#rankWindowRow(item),
      all: DIALOG_ROWS,
    });
    this.#tables.push(rows);
    rows.show(items);
  }

  /** @param {RankWindow} item */
  #rankWindowRow({ rank, name, stream, window }) {
    const path = `/v1/streams/${stream}/windows/${window.index}`;
    const label = `of ${rank}, window ${window.index}`;
    const files = this.#files.rank.map((kind) => button(title(kind), `${title(kind)} ${label}`, () => download(`${path}/${kind}`), STATUS));
    if (this.#files.rank.includes("chrome")) {
      const open = () => openInPerfetto(`${path}/chrome`, `${rank}, window ${window.index}`, (text) => setText(byId(STATUS), text));
      files.push(button("open in ui.perfetto.dev", `Open ${rank}, window ${window.index}, in ui.perfetto.dev`, open, STATUS));
    }
    const state = (window.open ? "open" : window.complete ? "complete" : "cut short") + evicted(window);
    const names = () => this.#openNames(rank, stream, window.index);
    const texts = [name, integer(window.steps), integer(window.events), integer(window.dropped), [state, ...window.diagnostics].join("; "), ""];
    const [, ...numbers] = texts.slice(0, 4);
    const node = element(
      "tr",
      {},
      element("th", { scope: "row" }, name),
      ...numbers.map((text) => element("td", { className: "number" }, text)),
      // In one line: rows have one height.
      element("td", {}, state, ...window.diagnostics.map((text) => element("span", { className: "quiet" }, `; ${text}`))),
      element("td", {}, button("names", `Table of names ${label}`, names, STATUS), ...files),
    );
    return { node, texts };
  }

  /**
   * @param {string} rank
   * @param {string} stream
   * @param {number} index
   */
  async #openNames(rank, stream, index) {
    this.#open(`Window ${index} of ${rank}`);
    /** @type {import("./api").Table} */
    const { spans } = await json(`/v1/streams/${stream}/windows/${index}/statistics`);
    const rows = spans.slice(0, NAMES).map((span) => {
      const times = [span.self_ns, span.total_ns, span.mean_ns, span.p50_ns, span.p95_ns, span.max_ns].map(nanoseconds);
      const numbers = [integer(span.count), ...times].map((text) => element("td", { className: "number" }, text));
      return element("tr", {}, element("th", { scope: "row" }, span.name || "(unnamed)"), element("td", {}, span.category), ...numbers);
    });
    const more = spans.length > NAMES ? `the ${NAMES} of ${integer(spans.length)} names with the largest self time` : "";
    setText(byId(STATUS), rows.length ? more : "This window has no spans.");
    byId("window-body").replaceChildren(table(["Name", "Category", "Count", "Self", "Total", "Mean", "P50", "P95", "Max"], rows));
  }

  // Opens the dialog, or goes on in it, without what it showed.
  /** @param {string} text its title */
  #open(text) {
    setText(byId("window-title"), text);
    setText(byId(STATUS), "reading …");
    this.#clearDialog();
    if (!this.#dialog.open) this.#dialog.showModal();
  }

  #clearDialog() {
    for (const rows of this.#tables.splice(0)) rows.remove();
    byId("window-body").replaceChildren();
  }
}

// To keep the collector's files within the limit of the disk.
/** @param {{ partly_evicted: number | boolean }} window */
const evicted = (window) => (window.partly_evicted ? ", partly evicted" : "");

/** @param {string} column */
const classOf = (column) => (WORDS.has(column) ? "" : "number");

/** @param {string} text */
const headCell = (text) => element("th", { scope: "col", className: classOf(text) }, text);

/**
 * @param {string[]} titles
 * @param {HTMLTableRowElement[]} rows
 */
export function table(titles, rows) {
  return element("table", {}, element("thead", {}, element("tr", {}, ...titles.map(headCell))), element("tbody", {}, ...rows));
}
