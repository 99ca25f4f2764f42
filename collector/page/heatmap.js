// @ts-check
// The heat map of step times: a row for each rank, or for several, and a column for each step, or for several. A cell's colour is
// the highest ratio in it of a rank's step time to the median of all ranks.

import { fromAddress, toAddress } from "./address.js";
import { byId, element, setText } from "./dom.js";
import { integer, milliseconds, rankName } from "./format.js";
import { json, withQuery } from "./server.js";

/** @typedef {import("./format.js").Rank} Rank */
/** @typedef {import("./api").Heatmap} Heatmap */
/** @typedef {{ fromRank: number | null, toRank: number | null, fromStep: number | null, toStep: number | null }} View The first and the last. */
/** @typedef {{ row: number, column: number }} Cell */

const EVERY = 2000; // ms between two requests
const MOST_ROWS = 320; // and CSS pixels of the height
const MOST_COLUMNS = 1000;
const ROW_HEIGHT = 16; // CSS pixels, of few rows
const LEAST_HEIGHT = 48;
const DRAG = 5; // CSS pixels that are no click
const NEUTRAL = 128; // the byte of the median
const OCTAVE = 32; // bytes for a factor of two
const FULL = 1.5; // octaves beyond which the colour stays the same
const LEGEND = [0.5, 0.8, 1, 1.25, 2, 3];
/** @type {View} */
const EVERYTHING = { fromRank: null, toRank: null, fromStep: null, toStep: null };

/** Colours of the median, of what is faster and of what is slower: blue and orange differ for all kinds of sight. */
const LIGHT = { median: [244, 244, 242], fast: [18, 84, 160], slow: [190, 60, 0] };
const DARK = { median: [44, 49, 58], fast: [110, 180, 255], slow: [255, 150, 60] };

/**
 * The colour of each byte, as RGBA in the order of the machine; that of 0, which stands for nothing known, is transparent.
 * @param {typeof LIGHT} theme
 */
function colourTable(theme) {
  const table = new Uint32Array(256);
  const bytes = new Uint8ClampedArray(table.buffer);
  for (let byte = 1; byte < 256; byte += 1) {
    const octaves = (byte - NEUTRAL) / OCTAVE;
    const strength = Math.min(Math.abs(octaves) / FULL, 1) ** 0.8;
    const end = octaves < 0 ? theme.fast : theme.slow;
    theme.median.forEach((value, channel) => {
      bytes[byte * 4 + channel] = value + (end[channel] - value) * strength;
    });
    bytes[byte * 4 + 3] = 255;
  }
  return table;
}

/** @param {number} byte */
const ratioOf = (byte) => 2 ** ((byte - NEUTRAL) / OCTAVE);

/** @param {number} low @param {number} value @param {number} high */
const clamp = (low, value, high) => Math.max(low, Math.min(value, high));

export class HeatMap {
  #section = byId("heatmap");
  #canvas = byId("heat-canvas", HTMLCanvasElement);
  #dark = matchMedia("(prefers-color-scheme: dark)");
  #colours = colourTable(LIGHT);
  /** @type {Heatmap | null} */
  #answer = null;
  #bytes = new Uint8Array();
  /** @type {View} */
  #view = EVERYTHING;
  #value = "own";
  /** @type {Map<string, Rank>} */
  #ranks = new Map();
  /** @type {string | null} */
  #job = null;
  /** @type {Cell} of the keyboard */
  #cursor = { row: 0, column: 0 };
  /** @type {{ x: number, y: number } | null} where a drag began, in CSS pixels of the canvas */
  #dragFrom = null;
  /** @type {{ x: number, y: number } | null} */
  #pointer = null;
  #visible = true; // until the observer has looked
  #requestedAt = -Infinity;
  #busy = false;
  #turn = 0; // answers to requests of an earlier one are not shown
  #zoomedAnew = false; // the cursor is announced when the answer is there
  #onChoose;

  /** @param {(id: string) => void} onChoose a rank is chosen */
  constructor(onChoose) {
    this.#onChoose = onChoose;
    new IntersectionObserver(([entry]) => {
      this.#visible = entry.isIntersecting || this.#section.hidden;
      this.#refresh();
    }).observe(this.#section);
    this.#dark.addEventListener("change", () => this.#setTheme());
    for (const input of this.#inputs) {
      input.addEventListener("change", () => {
        this.#value = input.value;
        toAddress({ value: this.#value === "whole" ? "whole" : null });
        this.#again();
      });
    }
    byId("heat-reset").addEventListener("click", () => {
      this.#setView(EVERYTHING);
      this.#canvas.focus(); // the button is hidden now
    });
    this.#listen();
    this.#setTheme();
    this.restore();
  }

  /** Takes zoom and kind of time from the address. */
  restore() {
    this.#value = fromAddress("value") === "whole" ? "whole" : "own";
    for (const input of this.#inputs) input.checked = input.value === this.#value;
    const numbers = fromAddress("map")?.match(/^(\d*)-(\d*),(\d*)-(\d*)$/) ?? [];
    const [fromRank, toRank, fromStep, toStep] = [1, 2, 3, 4].map((at) => (numbers[at] ? Number(numbers[at]) : null));
    this.#view = { fromRank, toRank, fromStep, toStep };
    byId("heat-reset").hidden = !this.#zoomed;
    this.#again();
  }

  /** Other ranks are shown from now on. */
  reset() {
    this.#answer = null;
    this.#section.hidden = true;
    this.#hideCell();
  }

  /**
   * Asks for the values again, every two seconds at most, while the section is in view.
   * @param {Map<string, Rank>} ranks
   * @param {string | null} job
   */
  async update(ranks, job) {
    this.#ranks = ranks;
    this.#job = job;
    if (ranks.size < 2) this.#section.hidden = true; // a rank alone has nobody to be compared with
    const due = performance.now() - this.#requestedAt >= EVERY;
    if (ranks.size < 2 || this.#busy || document.hidden || !due || !(this.#visible || this.#section.hidden)) return;
    const turn = this.#turn;
    this.#busy = true;
    this.#requestedAt = performance.now();
    const { fromRank, toRank, fromStep, toStep } = this.#view;
    try {
      /** @type {Heatmap} */
      const answer = await json(
        withQuery("/v1/heatmap", {
          job,
          rows: MOST_ROWS,
          columns: clamp(50, this.#canvas.clientWidth || 800, MOST_COLUMNS),
          value: this.#value,
          from_rank: fromRank,
          to_rank: toRank,
          from_step: fromStep,
          to_step: toStep,
        }),
      );
      if (turn === this.#turn) this.#show(answer);
    } finally {
      if (turn === this.#turn) this.#busy = false;
    }
  }

  get #inputs() {
    return /** @type {NodeListOf<HTMLInputElement>} */ (document.querySelectorAll("input[name=value]"));
  }

  get #zoomed() {
    return Object.values(this.#view).some((value) => value !== null);
  }

  // Asks at once, and does not wait for what was requested before.
  #again() {
    this.#turn += 1;
    this.#busy = false;
    this.#requestedAt = -Infinity;
    this.#refresh();
  }

  #refresh() {
    if (this.#answer) this.update(this.#ranks, this.#job).catch((error) => setText(byId("heat-text"), error.message));
  }

  /** @param {Heatmap} answer */
  #show(answer) {
    const rows = answer.rows.length;
    this.#answer = answer;
    this.#bytes = Uint8Array.from(atob(answer.values), (character) => character.charCodeAt(0));
    this.#section.hidden = false;
    const empty = !rows || !answer.columns;
    byId("heat-box").hidden = empty;
    if (empty) {
      this.#hideCell();
      setText(byId("heat-text"), this.#zoomed ? "Nothing is known of these ranks and steps." : "No step has ended yet.");
      return;
    }
    this.#canvas.style.height = `${clamp(LEAST_HEIGHT, rows * ROW_HEIGHT, MOST_ROWS)}px`;
    this.#cursor = { row: clamp(0, this.#cursor.row, rows - 1), column: clamp(0, this.#cursor.column, answer.columns - 1) };
    this.#draw();
    setText(byId("heat-first-rank"), this.#rowName(0));
    setText(byId("heat-last-rank"), rows > 1 ? this.#rowName(rows - 1) : "");
    setText(byId("heat-first-step"), `step ${integer(answer.first_step)}`);
    setText(byId("heat-last-step"), `step ${integer(this.#stepsOf(answer.columns - 1).last)}`);
    setText(byId("heat-text"), this.#description());
    this.#followPointer();
    if (this.#zoomedAnew && this.#canvas.matches(":focus-visible")) this.#showCursor();
    this.#zoomedAnew = false;
  }

  // A cell is one pixel of the canvas, which is stretched.
  #draw() {
    const { rows, columns } = this.#size;
    if (!rows || !columns) return;
    this.#canvas.width = columns;
    this.#canvas.height = rows;
    const image = new ImageData(columns, rows);
    const pixels = new Uint32Array(image.data.buffer);
    for (let at = 0; at < pixels.length; at += 1) pixels[at] = this.#colours[this.#bytes[at]];
    this.#canvas.getContext("2d")?.putImageData(image, 0, 0);
  }

  #setTheme() {
    this.#colours = colourTable(this.#dark.matches ? DARK : LIGHT);
    this.#draw();
    const item = (/** @type {number} */ byte, /** @type {string} */ text) => {
      const swatch = element("span", { className: "heat-swatch", "aria-hidden": "true" });
      const [red, green, blue] = new Uint8Array(this.#colours.buffer, byte * 4, 3);
      if (byte) swatch.style.background = `rgb(${red} ${green} ${blue})`;
      return element("li", {}, swatch, text);
    };
    const ratios = LEGEND.map((ratio) => item(Math.round(NEUTRAL + OCTAVE * Math.log2(ratio)), ratio === 1 ? "the median" : `${ratio}×`));
    byId("heat-legend").replaceChildren(...ratios, item(0, "nothing known"));
  }

  get #size() {
    return { rows: this.#answer?.rows.length ?? 0, columns: this.#answer?.columns ?? 0 };
  }

  #description() {
    const { rows, columns } = this.#size;
    if (!this.#answer) return "";
    const { ranks, ranks_per_row, steps_per_column } = this.#answer;
    let highest = 0;
    for (let at = 1; at < this.#bytes.length; at += 1) if (this.#bytes[at] > this.#bytes[highest]) highest = at;
    const per = [ranks_per_row > 1 ? `a row for ${integer(ranks_per_row)} ranks` : "", steps_per_column > 1 ? `a column for ${integer(steps_per_column)} steps` : ""];
    const parts = [`${integer(ranks)} ranks, ${integer(rows)} by ${integer(columns)} cells`, ...per.filter(Boolean)];
    const top = this.#bytes[highest] ? ` The highest: ${this.#cellText({ row: Math.floor(highest / columns), column: highest % columns })}` : "";
    const unknown = this.#value === "own" && this.#answer.value === "whole" ? " No collectives are known: times are those of whole steps." : "";
    return `${parts.join(", ")}.${top}${unknown}`;
  }

  /** @param {number} row */
  #rowName(row) {
    const id = this.#answer?.rows[row] ?? "";
    const view = this.#ranks.get(id);
    return view ? rankName(view) : id;
  }

  /** @param {number} column */
  #stepsOf(column) {
    const { first_step, steps_per_column } = /** @type {Heatmap} */ (this.#answer);
    const first = first_step + column * steps_per_column;
    return { first, last: first + steps_per_column - 1 };
  }

  /** @param {Cell} cell */
  #cellText({ row, column }) {
    const { ranks_per_row, columns, median_ms } = /** @type {Heatmap} */ (this.#answer);
    const { first, last } = this.#stepsOf(column);
    const ranks = ranks_per_row > 1 ? `the slowest of ${integer(ranks_per_row)} ranks from ${this.#rowName(row)}` : this.#rowName(row);
    const steps = first === last ? `step ${integer(first)}` : `steps ${integer(first)} to ${integer(last)}`;
    const byte = this.#bytes[row * columns + column];
    const median = median_ms[column];
    if (!byte || median === null) return `${ranks}, ${steps}: nothing is known.`;
    const ratio = ratioOf(byte);
    const own = this.#answer?.value === "own" ? " of its own work" : "";
    return `${ranks}, ${steps}: ${milliseconds(ratio * median)}${own}, ${ratio.toFixed(2)} times the median.`;
  }

  #listen() {
    const at = (/** @type {PointerEvent} */ event) => {
      const box = this.#canvas.getBoundingClientRect();
      return { x: clamp(0, event.clientX - box.left, box.width - 1), y: clamp(0, event.clientY - box.top, box.height - 1) };
    };
    this.#canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || !this.#answer) return;
      this.#dragFrom = at(event);
      this.#canvas.setPointerCapture(event.pointerId);
    });
    this.#canvas.addEventListener("pointermove", (event) => {
      this.#pointer = at(event);
      this.#followPointer();
    });
    this.#canvas.addEventListener("pointerup", (event) => {
      const from = this.#dragFrom;
      const to = at(event);
      this.#endDrag();
      if (!from) return;
      if (Math.max(Math.abs(to.x - from.x), Math.abs(to.y - from.y)) < DRAG) this.#choose(this.#cellAt(to).row);
      else this.#zoomTo(this.#selection(from, to));
    });
    this.#canvas.addEventListener("pointercancel", () => this.#endDrag());
    this.#canvas.addEventListener("pointerleave", () => {
      if (this.#dragFrom) return;
      this.#pointer = null;
      this.#hideCell();
    });
    this.#canvas.addEventListener("focus", () => {
      if (this.#canvas.matches(":focus-visible")) this.#showCursor();
    });
    this.#canvas.addEventListener("blur", () => this.#hideCell());
    this.#canvas.addEventListener("keydown", (event) => this.#onKey(event));
  }

  #endDrag() {
    this.#dragFrom = null;
    byId("heat-selection").hidden = true;
  }

  #followPointer() {
    if (!this.#pointer || !this.#answer) return;
    if (this.#dragFrom) {
      const { from, to } = this.#selection(this.#dragFrom, this.#pointer);
      this.#place(byId("heat-selection"), from, to);
    }
    this.#showCell(this.#cellAt(this.#pointer));
  }

  /** @param {{ x: number, y: number }} point @returns {Cell} */
  #cellAt({ x, y }) {
    const { rows, columns } = this.#size;
    const box = this.#canvas.getBoundingClientRect();
    return {
      row: clamp(0, Math.floor((y / box.height) * rows), rows - 1),
      column: clamp(0, Math.floor((x / box.width) * columns), columns - 1),
    };
  }

  // The cells of a drag. One along a row takes all ranks, one along a column all steps.
  /** @param {{ x: number, y: number }} one @param {{ x: number, y: number }} other */
  #selection(one, other) {
    const { rows, columns } = this.#size;
    const [first, last] = [this.#cellAt(one), this.#cellAt(other)];
    const from = { row: Math.min(first.row, last.row), column: Math.min(first.column, last.column) };
    const to = { row: Math.max(first.row, last.row), column: Math.max(first.column, last.column) };
    if (Math.abs(one.y - other.y) < 2 * DRAG) [from.row, to.row] = [0, rows - 1];
    if (Math.abs(one.x - other.x) < 2 * DRAG) [from.column, to.column] = [0, columns - 1];
    return { from, to };
  }

  /** @param {{ from: Cell, to: Cell }} cells */
  #zoomTo({ from, to }) {
    const { rows, columns } = this.#size;
    const { ranks_per_row } = /** @type {Heatmap} */ (this.#answer);
    const firstRank = this.#view.fromRank ?? 0;
    /** @type {View} */
    const view = { ...this.#view };
    if (from.row > 0 || to.row < rows - 1) {
      view.fromRank = firstRank + from.row * ranks_per_row;
      view.toRank = firstRank + (to.row + 1) * ranks_per_row - 1;
    }
    if (from.column > 0 || to.column < columns - 1) {
      view.fromStep = this.#stepsOf(from.column).first;
      view.toStep = this.#stepsOf(to.column).last;
    }
    this.#setView(view);
  }

  /** @param {View} view */
  #setView(view) {
    this.#view = view;
    const text = (/** @type {number | null} */ value) => value ?? "";
    const map = `${text(view.fromRank)}-${text(view.toRank)},${text(view.fromStep)}-${text(view.toStep)}`;
    toAddress({ map: this.#zoomed ? map : null });
    byId("heat-reset").hidden = !this.#zoomed;
    this.#hideCell();
    this.#zoomedAnew = true;
    this.#again();
  }

  // Of a row for several ranks it is not known which one is meant: it is shown rank by rank.
  /** @param {number} row */
  #choose(row) {
    if (!this.#answer) return;
    if (this.#answer.ranks_per_row > 1) this.#zoomTo({ from: { row, column: 0 }, to: { row, column: this.#size.columns - 1 } });
    else this.#onChoose(this.#answer.rows[row]);
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    const { rows, columns } = this.#size;
    const { row, column } = this.#cursor;
    const page = event.ctrlKey || event.shiftKey ? 10 : 1;
    /** @type {Record<string, () => void>} */
    const actions = {
      ArrowUp: () => this.#moveTo(row - page, column),
      ArrowDown: () => this.#moveTo(row + page, column),
      ArrowLeft: () => this.#moveTo(row, column - page),
      ArrowRight: () => this.#moveTo(row, column + page),
      PageUp: () => this.#moveTo(row - 10, column),
      PageDown: () => this.#moveTo(row + 10, column),
      Home: () => this.#moveTo(row, 0),
      End: () => this.#moveTo(row, columns - 1),
      Enter: () => this.#choose(row),
      "+": () => this.#zoomTo({ from: { row: half(row, rows)[0], column: half(column, columns)[0] }, to: { row: half(row, rows)[1], column: half(column, columns)[1] } }),
      "-": () => this.#setView(EVERYTHING),
    };
    const action = actions[event.key];
    if (!action || !rows || !columns || event.altKey || event.metaKey) return;
    event.preventDefault();
    action();
  }

  /** @param {number} row @param {number} column */
  #moveTo(row, column) {
    const { rows, columns } = this.#size;
    this.#cursor = { row: clamp(0, row, rows - 1), column: clamp(0, column, columns - 1) };
    this.#showCursor();
  }

  #showCursor() {
    if (!this.#answer || !this.#size.rows || !this.#size.columns) return;
    this.#showCell(this.#cursor);
    setText(byId("heat-live"), this.#cellText(this.#cursor));
  }

  /** @param {Cell} cell */
  #showCell(cell) {
    const frame = byId("heat-cell");
    this.#place(frame, cell, cell);
    const tip = byId("heat-tip");
    setText(tip, this.#cellText(cell));
    tip.hidden = false;
    const { rows, columns } = this.#size;
    const right = cell.column > columns / 2; // it stays inside the map
    tip.style.left = right ? "auto" : `calc(${(100 * (cell.column + 1)) / columns}% + 10px)`;
    tip.style.right = right ? `calc(${100 - (100 * cell.column) / columns}% + 10px)` : "auto";
    tip.style.top = `${clamp(0, (100 * cell.row) / rows, 100)}%`;
  }

  #hideCell() {
    byId("heat-cell").hidden = true;
    byId("heat-tip").hidden = true;
  }

  // Puts a frame around cells.
  /** @param {HTMLElement} frame @param {Cell} from @param {Cell} to */
  #place(frame, from, to) {
    const { rows, columns } = this.#size;
    frame.hidden = false;
    frame.style.left = `${(100 * from.column) / columns}%`;
    frame.style.top = `${(100 * from.row) / rows}%`;
    frame.style.width = `${(100 * (to.column + 1 - from.column)) / columns}%`;
    frame.style.height = `${(100 * (to.row + 1 - from.row)) / rows}%`;
  }
}

/**
 * The half of so many positions around one.
 * @param {number} at
 * @param {number} length
 */
function half(at, length) {
  const size = Math.max(Math.ceil(length / 2), 1);
  const first = clamp(0, at - Math.floor(size / 2), length - size);
  return [first, first + size - 1];
}
