// The chart of step times: the spread over all ranks, their median, and the ranks that were chosen.

import { byId, clock, element, milliseconds, rankName, say, whole } from "./format.js";
import { json, withQuery } from "./server.js";

export const FEW = 8; // so many ranks are all drawn
const HEIGHT = 240;
const ROWS = 30; // of the table
const LONG = 6; // points without a value, after which a line is broken

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export class StepChart {
  #plot = null;
  #key = "";
  #data = null;
  #lines = [];
  #asked = 0;
  #busy = false;
  #count = 0;
  #turn = 0;

  constructor() {
    this.range = "recent";
    for (const input of document.querySelectorAll("input[name=range]")) {
      input.addEventListener("change", () => {
        this.range = input.value;
        this.#key = ""; // another range is shown whole
        this.#plot?.destroy();
        this.#plot = null;
        this.#turn += 1;
        this.#asked = 0;
        this.#busy = false;
      });
    }
    new ResizeObserver(() => this.#plot?.setSize(this.#size())).observe(byId("plot"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.#key = "";
      this.#draw();
    });
    byId("chart-table").addEventListener("toggle", () => this.#table());
  }

  // Other ranks are shown from now on: what was asked for before is not waited for.
  reset() {
    this.#turn += 1;
    this.#asked = 0;
    this.#busy = false;
    this.#data = null;
    this.#key = "";
    this.#plot?.destroy();
    this.#plot = null;
    byId("legend").replaceChildren();
    say(byId("chart-text"), "");
    byId("chart-table").querySelectorAll("thead, tbody").forEach((part) => part.replaceChildren());
  }

  // Asks for the step times again, once a second at most; what is hidden asks for nothing.
  async update(ranks, chosen, job) {
    if (this.#busy || document.hidden || performance.now() - this.#asked < 900) return;
    const turn = this.#turn;
    this.#busy = true;
    this.#asked = performance.now();
    const few = ranks.length <= FEW;
    const shown = ranks.filter((view) => few || chosen.has(view.id) || view.slow_factor !== null).slice(0, 16);
    try {
      const ids = shown.map((view) => view.id).join(",");
      const chart = await json(withQuery("/v1/steps", { range: this.range, ranks: ids, job }));
      if (turn !== this.#turn) return;
      const slow = new Set(shown.filter((view) => view.slow_factor !== null).map((view) => view.id));
      const names = new Map(shown.map((view) => [view.id, rankName(view)]));
      this.#lines = chart.series.map((one) => ({ id: one.id, name: names.get(one.id) ?? one.id, slow: slow.has(one.id) }));
      this.#data = chart;
      this.#count = ranks.length;
      this.#draw();
    } finally {
      if (turn === this.#turn) this.#busy = false;
    }
  }

  #size() {
    return { width: Math.max(byId("plot").clientWidth, 200), height: HEIGHT };
  }

  #columns() {
    const { times, median, lowest, highest, series } = this.#data;
    return [times, highest, lowest, median, ...series.map((one) => one.step_ms)];
  }

  #draw() {
    if (!this.#data) return;
    const key = JSON.stringify([this.#several, this.#lines]);
    const zoom = this.#zoom();
    if (key !== this.#key) {
      this.#key = key;
      this.#plot?.destroy();
      this.#plot = new uPlot(this.#options(), this.#columns(), byId("plot"));
      if (zoom) this.#plot.setScale("x", zoom);
      this.#legend();
    } else if (zoom) {
      this.#plot.setData(this.#columns(), false); // with true the scales would be those of all times again
      this.#plot.redraw();
    } else {
      this.#plot.setData(this.#columns());
    }
    this.#text();
    this.#table();
  }

  // The times that somebody has zoomed to, as long as there is something left of them; a double click ends it.
  #zoom() {
    const shown = this.#plot?.data[0] ?? [];
    const now = this.#data.times;
    if (!shown.length || !now.length) return null;
    const { min, max } = this.#plot.scales.x;
    const zoomed = min > shown[0] || max < shown[shown.length - 1];
    return zoomed && max > now[0] && min < now[now.length - 1] ? { min, max } : null;
  }

  // Of one rank alone there is neither a median nor a spread.
  get #several() {
    return this.#count !== 1;
  }

  #colour(index) {
    return this.#lines[index].slow ? style("--bad") : style(`--line-${(index % 8) + 1}`);
  }

  #options() {
    const several = this.#several;
    const axis = { stroke: style("--quiet"), grid: { stroke: style("--rule"), width: 1 }, ticks: { show: false } };
    const line = { width: 1.5, points: { show: (plot) => plot.data[0].length < 12, size: 4 }, gaps: (plot, series) => breaks(plot, series, this.#data.width_s) };
    return {
      ...this.#size(),
      legend: { show: false },
      cursor: { points: { size: 5 }, drag: { x: true, y: false } },
      scales: { y: { range: (_, low, high) => [0, Math.max(high * 1.08, 1e-3)] } },
      axes: [
        { ...axis, size: 30, space: (plot) => (plot.width < 600 ? 56 : 80), values: [[1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1]] },
        { ...axis, size: 64, values: (_, ticks) => ticks.map((tick) => (tick ? milliseconds(tick) : "0")) },
      ],
      series: [
        {},
        { ...line, show: several, stroke: style("--band-edge"), width: 1, points: { show: false } },
        { ...line, show: several, stroke: style("--band-edge"), width: 1, points: { show: false } },
        { ...line, show: several, stroke: style("--median"), width: 2, dash: [6, 4] },
        ...this.#lines.map((one, index) => ({ ...line, stroke: this.#colour(index), width: one.slow ? 2.5 : 1.5 })),
      ],
      bands: [{ series: [1, 2], fill: style("--band") }],
      hooks: { setCursor: [(plot) => this.#values(plot.cursor.idx)] },
    };
  }

  #legend() {
    const item = (name, colour, kind) => {
      const swatch = element("span", { className: `swatch ${kind}`, "aria-hidden": "true" });
      swatch.style.color = colour;
      return element("li", {}, swatch, element("span", {}, name), element("output", {}));
    };
    const spread = [item("median", style("--median"), "dashed"), item("all ranks", style("--band"), "area")];
    byId("legend").replaceChildren(
      ...(this.#several ? spread : []),
      ...this.#lines.map((one, index) => item(one.slow ? `${one.name} (slow)` : one.name, this.#colour(index), "")),
    );
  }

  #values(index) {
    const [, high, low, median, ...rest] = this.#columns();
    const at = (values) => (index === null || index === undefined ? "" : milliseconds(values[index]));
    const range = index === null || index === undefined ? "" : `${at(low)} to ${at(high)}`;
    const texts = [...(this.#several ? [at(median), range] : []), ...rest.map(at)];
    byId("legend")
      .querySelectorAll("output")
      .forEach((output, number) => say(output, texts[number] ?? ""));
  }

  #text() {
    const { times, median, lowest, highest, width_s } = this.#data;
    if (!times.length) return say(byId("chart-text"), "No step has ended yet.");
    const last = times.length - 1;
    const ranks = this.#count === 1 ? "one rank" : `${whole(this.#count)} ranks`;
    const spread = this.#count === 1 ? "" : `, between ${milliseconds(lowest[last])} and ${milliseconds(highest[last])}`;
    say(
      byId("chart-text"),
      `Latest: ${milliseconds(median[last])} over ${ranks}${spread}. ` +
        `${clock(times[0])} to ${clock(times[last])}, a point for each ${width_s < 1 ? `${width_s} s` : seconds(width_s)}.`,
    );
  }

  #table() {
    const details = byId("chart-table");
    if (!details.open || !this.#data) return;
    const { times, median, lowest, highest, series } = this.#data;
    const head = ["Time", "Median", "Lowest", "Highest", ...this.#lines.map((one) => one.name)];
    details.querySelector("thead").replaceChildren(element("tr", {}, ...head.map((text) => element("th", { scope: "col" }, text))));
    const rows = [];
    for (let at = times.length - 1; at >= 0 && rows.length < ROWS; at -= 1) {
      const values = [median, lowest, highest, ...series.map((one) => one.step_ms)].map((list) => milliseconds(list[at]));
      rows.push(
        element("tr", {}, element("th", { scope: "row" }, clock(times[at])), ...values.map((text) => element("td", {}, text))),
      );
    }
    details.querySelector("tbody").replaceChildren(...rows);
  }
}

// Where a line is broken, in pixels: between points so far from each other that no step explains it.
function breaks(plot, series, width) {
  const times = plot.data[0];
  const values = plot.data[series];
  const found = [];
  let last = -1;
  for (let at = 0; at < values.length; at += 1) {
    if (values[at] === null) continue;
    const usual = last < 0 ? 0 : Math.max(LONG * width, (3 * Math.max(values[at], values[last])) / 1000);
    if (last >= 0 && times[at] - times[last] > usual) found.push([times[last], times[at]].map((time) => plot.valToPos(time, "x", true)));
    last = at;
  }
  return found;
}

function seconds(value) {
  return value < 120 ? `${value} s` : `${Math.round(value / 60)} min`;
}
