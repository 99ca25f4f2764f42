// The windows, and the dialog of one: its ranks with their files, and what a rank did in it.

import { byId, bytes, clock, element, nanoseconds, say, whole } from "./format.js";
import { download, json, openInPerfetto, withQuery } from "./server.js";

const EVERY = 3000; // ms between two looks
const ROWS = 50; // of a table of names
const TITLES = { chrome: "Chrome trace", perfetto: "Perfetto trace", parquet: "Parquet table" };
const COLUMNS = ["Window", "Began", "Ranks", "Steps", "Events", "Lost", "State", "Files"];
const NUMBERS = new Set(["Ranks", "Steps", "Events", "Lost"]);

const HEAD = ["Steps", "Events", "Lost", "State", "Files"];

const title = (kind) => TITLES[kind] ?? kind;

// `said`: id of the element that tells what goes wrong.
function button(text, label, act, said = "window-said") {
  const made = element("button", { type: "button", ariaLabel: label }, text);
  made.addEventListener("click", () => act().catch((error) => say(byId(said), error.message)));
  return made;
}

export class Windows {
  #looked = -Infinity;
  #seen = "";
  #files = { rank: [], merged: [] };
  #several = false; // whether there are windows of several jobs
  #turn = 0;

  constructor() {
    byId("window-table")
      .querySelector("thead tr")
      .append(...COLUMNS.map((text) => element("th", { scope: "col", className: NUMBERS.has(text) ? "number" : "" }, text)));
  }

  // Windows of another job are shown from now on.
  reset() {
    this.#turn += 1;
    this.#looked = -Infinity;
    byId("window-table").querySelector("tbody").replaceChildren();
    byId("window-table").hidden = true;
    byId("no-windows").hidden = true;
    say(byId("windows-said"), "");
  }

  // `chosen`: the job whose windows are shown, null: of all.
  async update(job, ranks, chosen) {
    const seen = `${ranks.length} ${ranks.reduce((sum, view) => sum + view.windows, 0)} ${ranks.filter((view) => view.state === "connected").length} ${job.storage?.discarded_events}`;
    const now = performance.now();
    if (document.hidden || now - this.#looked < EVERY || (seen === this.#seen && now - this.#looked < 5 * EVERY)) return;
    this.#looked = now;
    this.#seen = seen;
    this.#files = { rank: job.rank_files, merged: job.merged_files };
    const turn = this.#turn;
    const windows = await json(withQuery("/v1/windows", { limit: 30, job: chosen }));
    if (turn !== this.#turn) return;
    this.#several = new Set(windows.map((window) => window.job_id)).size > 1;
    byId("no-windows").hidden = windows.length > 0;
    byId("window-table").hidden = windows.length === 0;
    const body = byId("window-table").querySelector("tbody");
    const focused = body.contains(document.activeElement) ? document.activeElement.ariaLabel : null;
    body.replaceChildren(...windows.map((window) => this.#row(window)));
    // Who was on a button of a row that was made anew is still on it.
    if (focused) [...body.querySelectorAll("button")].find((one) => one.ariaLabel === focused)?.focus();
  }

  #row(window) {
    const cells = [
      clock(window.started_ns / 1e9),
      whole(window.ranks),
      whole(window.steps),
      whole(window.events),
      whole(window.dropped),
      (window.open ? `open in ${window.open}` : window.incomplete ? `cut short in ${window.incomplete}` : "complete") + evicted(window),
    ];
    const of = `window ${window.index}${this.#several ? ` of ${window.job_id}` : ""}`;
    const address = (kind) => withQuery(`/v1/windows/${window.index}/${kind}`, { job: window.job_id });
    const merged = this.#files.merged.map((kind) => button(title(kind), `${title(kind)} of ${of}, all ranks`, () => download(address(kind)), "windows-said"));
    if (this.#files.merged.includes("perfetto")) {
      const open = () => openInPerfetto(address("perfetto"), `${of}, all ranks`, (text) => say(byId("windows-said"), text));
      merged.push(button("open in ui.perfetto.dev", `Open ${of}, all ranks, in ui.perfetto.dev`, open, "windows-said"));
    }
    return element(
      "tr",
      {},
      element("th", { scope: "row" }, `${window.index}`, ...(this.#several ? [element("p", { className: "quiet" }, window.job_id)] : [])),
      ...cells.map((text, index) => element("td", { className: NUMBERS.has(COLUMNS[index + 1]) ? "number" : "" }, text)),
      element("td", {}, button("ranks …", `Ranks of ${of}`, () => this.#open(window, of)), ...merged),
    );
  }

  async #open({ index, job_id }, of) {
    this.#show(of.replace("w", "W"));
    say(byId("window-said"), "reading …");
    const detail = await json(withQuery(`/v1/windows/${index}`, { job: job_id }));
    const again = new Set(detail.ranks.filter(({ start }) => start > 1).map(({ rank }) => rank));
    const rows = detail.ranks.map(({ rank, start, stream, window }) => {
      const name = again.has(rank) ? `${rank}, start ${start}` : rank;
      return this.#windowRow(name, name, stream, window);
    });
    say(byId("window-said"), "");
    byId("window-body").replaceChildren(table(["Rank", ...HEAD], rows));
  }

  // A rank by itself: each of its starts, with its windows.
  async openRank(id) {
    this.#show(id);
    say(byId("window-said"), "reading …");
    try {
      const { rank, streams } = await json(`/v1/ranks/${encodeURIComponent(id)}`);
      say(byId("window-said"), `${rank.host}, process ${rank.pid}`);
      const parts = streams.flatMap((one) => {
        const lost = Object.entries(one.dropped).map(([why, events]) => `${whole(events)} lost (${why})`);
        const facts = [one.state, `${whole(one.events)} events`, bytes(one.bytes), ...lost];
        const head = element("h3", {}, `Start ${one.start}, ${clock(one.seen_first_ns / 1e9)}: ${facts.join(", ")} `);
        head.append(button("journal", `Journal of start ${one.start}`, () => download(`/v1/streams/${one.stream}/journal`)));
        const rows = one.windows.map((window) => this.#windowRow(id, `${window.index}`, one.stream, window));
        return rows.length ? [head, table(["Window", ...HEAD], rows)] : [head];
      });
      byId("window-body").replaceChildren(...parts);
    } catch (error) {
      say(byId("window-said"), error.message);
    }
  }

  #windowRow(rank, name, stream, window) {
    const at = `/v1/streams/${stream}/windows/${window.index}`;
    const of = `of ${rank}, window ${window.index}`;
    const files = this.#files.rank.map((kind) => button(title(kind), `${title(kind)} ${of}`, () => download(`${at}/${kind}`)));
    if (this.#files.rank.includes("chrome")) {
      const open = () => openInPerfetto(`${at}/chrome`, `${rank}, window ${window.index}`, (text) => say(byId("window-said"), text));
      files.push(button("open in ui.perfetto.dev", `Open ${rank}, window ${window.index}, in ui.perfetto.dev`, open));
    }
    const state = (window.open ? "open" : window.complete ? "complete" : "cut short") + evicted(window);
    return element(
      "tr",
      {},
      element("th", { scope: "row" }, name),
      ...[window.steps, window.events, window.dropped].map((value) => element("td", { className: "number" }, whole(value))),
      element("td", {}, state, ...window.diagnostics.map((text) => element("p", { className: "quiet" }, text))),
      element("td", {}, button("names", `Table of names ${of}`, () => this.#names(rank, stream, window.index)), ...files),
    );
  }

  async #names(rank, stream, index) {
    this.#show(`Window ${index} of ${rank}`);
    say(byId("window-said"), "reading …");
    byId("window-body").replaceChildren();
    const found = await json(`/v1/streams/${stream}/windows/${index}/statistics`);
    const rows = found.spans.slice(0, ROWS).map((span) =>
      element(
        "tr",
        {},
        element("th", { scope: "row" }, span.name || "(unnamed)"),
        element("td", {}, span.category),
        ...[whole(span.count), ...[span.self_ns, span.total_ns, span.mean_ns, span.p50_ns, span.p95_ns, span.max_ns].map(nanoseconds)].map((text) =>
          element("td", { className: "number" }, text),
        ),
      ),
    );
    const more = found.spans.length > ROWS ? `the ${ROWS} of ${whole(found.spans.length)} names with the largest self time` : "";
    say(byId("window-said"), rows.length ? more : "This window has no spans.");
    byId("window-body").replaceChildren(table(["Name", "Category", "Count", "Self", "Total", "Mean", "P50", "P95", "Max"], rows, 2));
  }

  #show(text) {
    say(byId("window-title"), text);
    const dialog = byId("window");
    if (!dialog.open) {
      byId("window-body").replaceChildren();
      dialog.showModal();
    }
  }
}

// To keep the collector's files within the limit of the disk.
const evicted = (window) => (window.discarded ? `, ${whole(window.discarded)} events evicted` : "");

function table(titles, rows, words = 1) {
  const number = (index) => (index >= words && !["State", "Files"].includes(titles[index]) ? "number" : "");
  const head = titles.map((text, index) => element("th", { scope: "col", className: number(index) }, text));
  return element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows));
}
