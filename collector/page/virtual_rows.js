// @ts-check
// The rows of a table. Of many rows only those in view are elements, so a table of ten thousand ranks is as light as one of fifty.

import { element, find, setText, updateChildren } from "./dom.js";

const OVERSCAN = 12; // rows that exist above and below those in view
const ALL = 100; // a table of so many rows has them all

/**
 * @typedef {object} Row
 * @property {HTMLTableRowElement} node
 * @property {string[]} texts of its cells; the widest of each column keeps the column's width
 */

/**
 * @template T
 * @template {Row} R
 * @typedef {object} RowType
 * @property {(item: T) => string} key what identifies an item; its row stays while it is in view
 * @property {(item: T) => R} create a row for an item
 * @property {(row: R, item: T) => void} [write] brings a row up to date
 * @property {number} [all] a table of so many rows has them all
 */

/**
 * @template T
 * @template {Row} [R=Row]
 */
export class VirtualRows {
  #table;
  #type;
  #scroll;
  #body;
  #foot = element("tfoot", { className: "widths", "aria-hidden": "true", hidden: true }, element("tr"));
  /** @type {T[]} */
  #items = [];
  /** @type {Map<string, R>} */
  #rows = new Map();
  /** @type {HTMLTableRowElement[]} */
  #spaces = [];
  /** @type {string[]} */
  #widest = [];
  #height = 28; // of a row, in CSS pixels, until one is measured
  #measured = false;
  #scheduled = false;
  #listening = new AbortController();
  #resized = new ResizeObserver(() => this.#schedule());

  /**
   * @param {HTMLTableElement} table with a head and an empty body, inside an element of the class `scroll`
   * @param {RowType<T, R>} type
   */
  constructor(table, type) {
    this.#table = table;
    this.#type = type;
    this.#body = find(table, "tbody", HTMLTableSectionElement);
    const scroll = table.closest(".scroll");
    if (!(scroll instanceof HTMLElement)) throw new Error("the table is not inside an element of the class scroll");
    this.#scroll = scroll;
    table.append(this.#foot);
    const { signal } = this.#listening;
    scroll.addEventListener("scroll", () => this.#schedule(), { passive: true, signal });
    this.#body.addEventListener("focusin", () => this.#schedule(), { signal });
    this.#resized.observe(scroll);
  }

  /**
   * Shows these items, in this order.
   * @param {T[]} items
   */
  show(items) {
    this.#items = items;
    this.#draw();
  }

  /** Forgets all rows: the columns, or what is shown, have changed altogether. */
  clear() {
    this.#rows.clear();
    this.#widest = [];
    this.#spaces = [];
    this.#items = [];
    this.#body.replaceChildren();
    find(this.#foot, "tr", HTMLTableRowElement).replaceChildren();
  }

  /** Ends it, for a table that is removed. */
  remove() {
    this.#listening.abort();
    this.#resized.disconnect();
  }

  /**
   * Scrolls the table to an item, unless it is in view.
   * @param {string} key
   */
  reveal(key) {
    const at = this.#items.findIndex((item) => this.#type.key(item) === key);
    if (at < 0) return;
    const view = this.#scroll.getBoundingClientRect();
    const top = this.#body.getBoundingClientRect().top + at * this.#height - view.top;
    if (top < 2 * this.#height || top > this.#scroll.clientHeight - this.#height) this.#scroll.scrollTop += top - this.#scroll.clientHeight / 2;
    this.#draw();
  }

  #schedule() {
    if (this.#scheduled || this.#isWhole) return;
    this.#scheduled = true;
    requestAnimationFrame(() => {
      this.#scheduled = false;
      this.#draw();
    });
  }

  get #isWhole() {
    return this.#items.length <= (this.#type.all ?? ALL);
  }

  // Positions of the items that have a row: those in view, and the one with the focus with its neighbours, to which the tabulator key leads.
  /** @param {number} focusedAt */
  #wanted(focusedAt) {
    const length = this.#items.length;
    if (this.#isWhole) return this.#items.map((_, at) => at);
    const view = this.#scroll.getBoundingClientRect();
    const above = (view.top - this.#body.getBoundingClientRect().top) / this.#height;
    const bound = (/** @type {number} */ at) => Math.max(Math.min(at, length), 0);
    const first = bound(Math.floor(above) - OVERSCAN);
    const last = bound(Math.ceil(above + view.height / this.#height) + OVERSCAN);
    const around = focusedAt < 0 ? [] : [focusedAt - 1, focusedAt, focusedAt + 1].filter((at) => at >= 0 && at < length);
    const seen = Array.from({ length: Math.max(last - first, 0) }, (_, index) => first + index);
    return [...around.filter((at) => at < first), ...seen, ...around.filter((at) => at >= last)];
  }

  // Puts the wanted rows in their places; empty space stands for the others.
  #draw() {
    const { key, create, write } = this.#type;
    const whole = this.#isWhole;
    const active = document.activeElement;
    const focused = active instanceof HTMLElement && this.#body.contains(active) ? active : null;
    const focusedKey = focused?.closest("tr")?.dataset.id;
    const focusedAt = focusedKey === undefined || whole ? -1 : this.#items.findIndex((item) => key(item) === focusedKey);
    /** @type {HTMLTableRowElement[]} */
    const nodes = [];
    /** @type {Map<string, R>} */
    const rows = new Map();
    let next = 0;
    let spaces = 0;
    for (const at of this.#wanted(focusedAt)) {
      if (at > next) nodes.push(this.#space(spaces++, at - next));
      next = at + 1;
      const item = this.#items[at];
      const id = key(item);
      const row = this.#rows.get(id) ?? create(item);
      row.node.dataset.id = id;
      rows.set(id, row);
      write?.(row, item);
      setRowIndex(row.node, whole ? null : at + 2);
      nodes.push(row.node);
    }
    if (next < this.#items.length) nodes.push(this.#space(spaces, this.#items.length - next));
    this.#rows = rows;
    if (whole) this.#table.removeAttribute("aria-rowcount");
    else this.#table.setAttribute("aria-rowcount", String(this.#items.length + 1));
    setRowIndex(find(this.#table, "thead tr", HTMLTableRowElement), whole ? null : 1);
    updateChildren(this.#body, nodes);
    if (focused && document.activeElement !== focused && focusedKey !== undefined && rows.has(focusedKey)) focused.focus({ preventScroll: true });
    this.#foot.hidden = whole;
    this.#measure(rows, whole);
  }

  // The height of the space for rows that do not exist, and the width that a column keeps while its rows come and go.
  /**
   * @param {Map<string, R>} rows
   * @param {boolean} whole
   */
  #measure(rows, whole) {
    for (const { texts } of rows.values()) {
      texts.forEach((text, index) => {
        if (text.length > (this.#widest[index]?.length ?? -1)) this.#widest[index] = text;
      });
    }
    if (whole) return;
    const height = rows.values().next().value?.node.getBoundingClientRect().height;
    if (height && Math.abs(height - this.#height) > 0.01) {
      this.#height = height;
      if (this.#measured) this.#schedule();
      else {
        this.#measured = true;
        this.#draw();
      }
    }
    const line = find(this.#foot, "tr", HTMLTableRowElement);
    if (line.cells.length !== this.#widest.length) line.replaceChildren(...this.#widest.map(() => element("td")));
    this.#widest.forEach((text, index) => setText(line.cells[index], text));
  }

  /**
   * @param {number} number
   * @param {number} rows
   */
  #space(number, rows) {
    const cell = element("td", { colSpan: this.#widest.length || 1 });
    this.#spaces[number] ??= element("tr", { className: "space", "aria-hidden": "true" }, cell);
    this.#spaces[number].cells[0].style.height = `${rows * this.#height}px`;
    return this.#spaces[number];
  }
}

/**
 * @param {HTMLTableRowElement} row
 * @param {number | null} index
 */
function setRowIndex(row, index) {
  if (index === null) row.removeAttribute("aria-rowindex");
  else row.setAttribute("aria-rowindex", String(index));
}
