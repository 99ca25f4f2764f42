// @ts-check
// The chart of step times: the spread over all ranks, their median, and the chosen ranks.

import { fromAddress, toAddress } from "./address.js";
import { byId, element, find, setText } from "./dom.js";
import { clock, duration, integer, milliseconds, rankName } from "./format.js";
import { json, withQuery } from "./server.js";

/** @typedef {import("./format.js").Rank} Rank */
/** @typedef {{ min: number, max: number }} Zoom Unix seconds */

export const FEW = 8; // so many ranks all have a line
const MOST_LINES = 16;
const HEIGHT = 240;
const TABLE_ROWS = 30;
const GAP = 6; // a line is broken after so many points without a value
const LEAST = 4; // a zoom by keys has so many points
// Distances of the times below the chart. Shorter ones would show the same second twice.
const SECONDS = [1, 5, 10, 15, 30, 60, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400, 172800, 604800];
const EVERY = 900; // ms between two requests

/** @type {any} uPlot has no types; it is a script of its own */
const { uPlot } = /** @type {any} */ (globalThis);

/** @param {string} name */
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export class StepChart {
  /** @type {any} */
  #plot = null;
  #key = "";
  /** @type {import("./api").Chart | null} */
  #data = null;
  /** @type {{ id: string, name: string, slow: boolean, chosen: boolean }[]} */
  #lines = [];
  /** @type {Zoom | null} */
  #zoom = null;
  #range = "recent";
  #requestedAt = 0;
  #busy = false;
  #count = 0;
  #turn = 0; // answers to requests of an earlier one are not shown

  constructor() {
    for (const input of this.#inputs) {
      input.addEventListener("change", () => {
        this.#setRange(input.value);
        this.#setZoom(null);
      });
    }
    byId("reset-zoom").addEventListener("click", () => this.#setZoom(null));
    byId("plot").addEventListener("keydown", (event) => this.#onKey(event));
    new ResizeObserver(() => this.#plot?.setSize(this.#size())).observe(byId("plot"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.#key = "";
      this.#draw();
    });
    byId("chart-table").addEventListener("toggle", () => this.#table());
    this.restore();
  }

  /** Takes time range and zoom from the address. */
  restore() {
    this.#setRange(fromAddress("range") === "all" ? "all" : "recent");
    const [, min, max] = fromAddress("t")?.match(/^([\d.]+)-([\d.]+)$/)?.map(Number) ?? [];
    this.#setZoom(min < max ? { min, max } : null);
  }

  /** Other ranks are shown from now on. */
  reset() {
    this.#forget();
    this.#data = null;
    byId("legend").replaceChildren();
    setText(byId("chart-text"), "");
    for (const part of byId("chart-table").querySelectorAll("thead, tbody")) part.replaceChildren();
  }

  /**
   * Asks for the step times again, once a second at most; a hidden page asks for nothing.
   * @param {Rank[]} ranks
   * @param {Set<string>} chosen ids of the ranks that have a line in any case
   * @param {string | null} job
   */
  async update(ranks, chosen, job) {
    if (this.#busy || document.hidden || performance.now() - this.#requestedAt < EVERY) return;
    const turn = this.#turn;
    this.#busy = true;
    this.#requestedAt = performance.now();
    const few = ranks.length <= FEW;
    const slow = ranks.filter((view) => view.slow && !chosen.has(view.id));
    const shown = few ? ranks : [...ranks.filter((view) => chosen.has(view.id)), ...slow].slice(0, MOST_LINES);
    try {
      const ids = shown.map((view) => view.id).join(",");
      /** @type {import("./api").Chart} */
      const chart = await json(withQuery("/v1/steps", { range: this.#range, ranks: ids, job }));
      if (turn !== this.#turn) return;
      const views = new Map(shown.map((view) => [view.id, view]));
      this.#lines = chart.series.map(({ id }) => {
        const view = views.get(id);
        return { id, name: view ? rankName(view) : id, slow: view?.slow ?? false, chosen: few && chosen.has(id) };
      });
      this.#data = chart;
      this.#count = ranks.length;
      this.#draw();
    } finally {
      if (turn === this.#turn) this.#busy = false;
    }
  }

  get #inputs() {
    return /** @type {NodeListOf<HTMLInputElement>} */ (document.querySelectorAll("input[name=range]"));
  }

  // Of one rank alone there is neither a median nor a spread.
  get #several() {
    return this.#count > 1;
  }

  /** @param {string} range */
  #setRange(range) {
    if (range !== this.#range) this.#forget();
    this.#range = range;
    for (const input of this.#inputs) input.checked = input.value === range;
    toAddress({ range: range === "all" ? range : null });
  }

  // What was requested before is not waited for.
  #forget() {
    this.#turn += 1;
    this.#requestedAt = 0;
    this.#busy = false;
    this.#key = "";
    this.#plot?.destroy();
    this.#plot = null;
  }

  /** @param {Zoom | null} zoom */
  #setZoom(zoom) {
    this.#zoom = zoom;
    byId("reset-zoom").hidden = zoom === null;
    toAddress({ t: zoom && `${zoom.min.toFixed(3)}-${zoom.max.toFixed(3)}` });
    if (this.#plot) this.#draw();
  }

  // A zoom to times that the last minutes no longer have goes on in the whole run.
  #keepZoomInView() {
    const times = this.#data?.times ?? [];
    if (!this.#zoom || !times.length) return;
    if (this.#zoom.max > times[0] && this.#zoom.min < times[times.length - 1]) return;
    if (this.#range === "recent" && this.#zoom.min < times[times.length - 1]) this.#setRange("all");
    else this.#setZoom(null);
  }

  #size() {
    return { width: Math.max(byId("plot").clientWidth, 200), height: HEIGHT };
  }

  /** @param {import("./api").Chart} data */
  #columns({ times, median, lowest, highest, series }) {
    return [times, highest, lowest, median, ...series.map((one) => one.step_ms)];
  }

  #draw() {
    this.#keepZoomInView();
    if (!this.#data) return;
    const columns = this.#columns(this.#data);
    const key = JSON.stringify([this.#several, this.#lines]);
    if (key !== this.#key || !this.#plot) {
      this.#key = key;
      this.#plot?.destroy();
      this.#plot = new uPlot(this.#options(), columns, byId("plot"));
      this.#legend();
    } else this.#plot.setData(columns, this.#zoom === null); // with true the scales become those of all times
    if (this.#zoom) this.#plot.setScale("x", this.#zoom);
    this.#text(this.#data);
    this.#table();
  }

  /** @param {number} index of a line */
  #colour(index) {
    return style(`--line-${(index % 8) + 1}`);
  }

  #options() {
    const several = this.#several;
    const axis = { stroke: style("--quiet"), grid: { stroke: style("--rule"), width: 1 }, ticks: { show: false } };
    const gaps = (/** @type {any} */ plot, /** @type {number} */ series) => gapsOf(plot, series, this.#data?.width_s ?? 1);
    const line = { width: 1.5, points: { show: (/** @type {any} */ plot) => plot.data[0].length < 12, size: 4 }, gaps };
    const edge = { ...line, show: several, stroke: style("--band-edge"), width: 1, points: { show: false } };
    return {
      ...this.#size(),
      legend: { show: false },
      cursor: {
        points: { size: 5 },
        drag: { x: true, y: false, setScale: false },
        bind: { dblclick: () => () => this.#setZoom(null) },
      },
      scales: { y: { range: (/** @type {any} */ _, /** @type {number} */ low, /** @type {number} */ high) => [0, Math.max(high * 1.08, 1e-3)] } },
      axes: [
        {
          ...axis,
          size: 30,
          space: (/** @type {any} */ plot) => (plot.width < 600 ? 56 : 80),
          incrs: SECONDS,
          values: [[1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1]],
        },
        {
          ...axis,
          size: 64,
          values: (/** @type {any} */ plot, /** @type {number[]} */ ticks) =>
            ticks.map((tick) => (plot.data[0].length ? (tick ? milliseconds(tick) : "0") : "")),
        },
      ],
      series: [
        {},
        edge,
        edge,
        { ...line, show: several, stroke: style("--median"), width: 2, dash: [6, 4] },
        ...this.#lines.map((one, index) => ({ ...line, stroke: this.#colour(index), width: one.slow || one.chosen ? 2.5 : 1.5 })),
      ],
      bands: [{ series: [1, 2], fill: style("--band") }],
      hooks: {
        setCursor: [(/** @type {any} */ plot) => this.#values(plot.cursor.idx)],
        setSelect: [(/** @type {any} */ plot) => this.#zoomToSelection(plot)],
      },
    };
  }

  /** @param {any} plot */
  #zoomToSelection(plot) {
    const { left, width } = plot.select;
    if (!width) return;
    const [min, max] = [left, left + width].map((at) => plot.posToVal(at, "x"));
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.#setZoom({ min, max });
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    const { times, width_s } = this.#data ?? { times: [], width_s: 1 };
    if (times.length < 2 || event.altKey || event.ctrlKey || event.metaKey) return;
    const [first, last] = [times[0], times[times.length - 1]];
    const { min, max } = this.#zoom ?? { min: first, max: last };
    const part = (max - min) / 4;
    /** @type {Record<string, () => [number, number]>} from when, and how long */
    const actions = {
      "+": () => [min + part, Math.max(2 * part, LEAST * width_s)],
      "-": () => [min - 2 * part, 8 * part],
      ArrowLeft: () => [min - part, 4 * part],
      ArrowRight: () => [min + part, 4 * part],
      Home: () => [first, 4 * part],
      End: () => [last, 4 * part],
    };
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    const [from, seconds] = action();
    const begin = Math.max(first, Math.min(from, last - seconds));
    this.#setZoom(seconds < last - first ? { min: begin, max: begin + seconds } : null);
    setText(byId("chart-live"), this.#zoom ? this.#zoomText(this.#zoom) : "The chart shows all times.");
  }

  /** @param {Zoom} zoom */
  #zoomText({ min, max }) {
    return `The chart shows ${clock(min)} to ${clock(max)}.`;
  }

  #legend() {
    const item = (/** @type {string} */ name, /** @type {string} */ colour, /** @type {string} */ kind) => {
      const swatch = element("span", { className: `swatch ${kind}`, "aria-hidden": "true" });
      swatch.style.color = colour;
      return element("li", {}, swatch, element("span", {}, name), element("output"));
    };
    const spread = [item("median", style("--median"), "dashed"), item("all ranks", style("--band"), "area")];
    byId("legend").replaceChildren(
      ...(this.#several ? spread : []),
      ...this.#lines.map((one, index) => item(one.slow ? `${one.name} (slow)` : one.name, this.#colour(index), "")),
    );
  }

  // The values below the pointer, in the legend.
  /** @param {number | null | undefined} index */
  #values(index) {
    if (!this.#data) return;
    const { median, lowest, highest, series } = this.#data;
    const none = index === null || index === undefined;
    const at = (/** @type {(number | null)[]} */ values) => (none ? "" : milliseconds(values[index]));
    const spread = [at(median), none ? "" : `${at(lowest)} to ${at(highest)}`];
    const texts = [...(this.#several ? spread : []), ...series.map((one) => at(one.step_ms))];
    byId("legend")
      .querySelectorAll("output")
      .forEach((output, number) => setText(output, texts[number] ?? ""));
  }

  /** @param {import("./api").Chart} data */
  #text({ times, median, lowest, highest, width_s }) {
    if (!times.length) return setText(byId("chart-text"), "No step has ended yet.");
    const last = times.length - 1;
    const ranks = this.#count === 1 ? "one rank" : `${integer(this.#count)} ranks`;
    const spread = this.#count === 1 ? "" : `, between ${milliseconds(lowest[last])} and ${milliseconds(highest[last])}`;
    const zoomed = this.#zoom ? ` ${this.#zoomText(this.#zoom)}` : "";
    setText(
      byId("chart-text"),
      `Latest: ${milliseconds(median[last])} over ${ranks}${spread}. ` +
        `${clock(times[0])} to ${clock(times[last])}, a point for each ${width_s < 1 ? `${width_s} s` : duration(width_s)}.${zoomed}`,
    );
  }

  #table() {
    const details = byId("chart-table", HTMLDetailsElement);
    if (!details.open || !this.#data) return;
    const { times, median, lowest, highest, series } = this.#data;
    const head = ["Time", "Median", "Lowest", "Highest", ...this.#lines.map((one) => one.name)];
    find(details, "thead").replaceChildren(element("tr", {}, ...head.map((text) => element("th", { scope: "col" }, text))));
    const rows = [];
    for (let at = times.length - 1; at >= 0 && rows.length < TABLE_ROWS; at -= 1) {
      const values = [median, lowest, highest, ...series.map((one) => one.step_ms)].map((list) => milliseconds(list[at]));
      rows.push(element("tr", {}, element("th", { scope: "row" }, clock(times[at])), ...values.map((text) => element("td", {}, text))));
    }
    find(details, "tbody").replaceChildren(...rows);
  }
}

/**
 * Where a line is broken, in pixels: between points that are further from each other than steps explain.
 * @param {any} plot
 * @param {number} series
 * @param {number} width seconds that one point stands for
 */
function gapsOf(plot, series, width) {
  /** @type {number[]} */
  const times = plot.data[0];
  /** @type {(number | null)[]} */
  const values = plot.data[series];
  const found = [];
  let last = -1;
  for (let at = 0; at < values.length; at += 1) {
    const value = values[at];
    if (value === null) continue;
    const usual = last < 0 ? 0 : Math.max(GAP * width, (3 * Math.max(value, values[last] ?? 0)) / 1000);
    if (last >= 0 && times[at] - times[last] > usual) found.push([times[last], times[at]].map((time) => plot.valToPos(time, "x", true)));
    last = at;
  }
  return found;
}
