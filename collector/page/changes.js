// @ts-check
// What changed of the ranks, in words: for those who look away, and for those who listen.

import { byId, element } from "./dom.js";
import { clock, integer, rankName } from "./format.js";

/** @typedef {import("./format.js").Rank} Rank */

const MOST = 60; // lines
const EACH = 4; // more changes of a kind at once are one line, with their number

export class Changes {
  /** @type {Map<string, Rank>} */
  #known = new Map();
  #first = true;

  /**
   * @param {Rank[]} ranks
   * @param {number} atNs Unix time
   */
  update(ranks, atNs) {
    /** @type {Map<string, Rank[]>} */
    const changed = new Map();
    const add = (/** @type {string} */ what, /** @type {Rank} */ view) => {
      const views = changed.get(what);
      if (views) views.push(view);
      else changed.set(what, [view]);
    };
    for (const view of ranks) {
      const before = this.#known.get(view.id);
      this.#known.set(view.id, view);
      if (this.#first || view === before) continue;
      if (!before) add(stateWords(view, view), view);
      else if (view.incarnation > before.incarnation) add("was started again", view);
      else if (view.state !== before.state) add(stateWords(view, before), view);
      if (before && view.slow && !before.slow) add("is slow", view);
      if (before && !view.slow && before.slow) add("is not slow any more", view);
      if (before && view.dropped > before.dropped && before.dropped === 0) add("has lost events", view);
    }
    this.#first = false;
    for (const [what, views] of changed) {
      if (views.length > EACH) this.#line(`${integer(views.length)} ranks ${plural(what)}`, atNs, what);
      else for (const view of views) this.#line(`${rankName(view)} ${what}`, atNs, what);
    }
  }

  /** Other ranks are shown from now on: what they do first is no change. */
  reset() {
    this.#known.clear();
    this.#first = true;
    byId("changes").replaceChildren();
  }

  /** @param {string} text */
  note(text) {
    this.#line(text, Date.now() * 1e6, "");
  }

  /**
   * @param {string} text
   * @param {number} atNs
   * @param {string} what
   */
  #line(text, atNs, what) {
    const list = byId("changes");
    const bad = ["died", "is slow", "has lost events"].includes(what);
    list.prepend(element("li", { className: bad ? "bad" : "" }, element("time", {}, clock(atNs / 1e9)), ` ${text}`));
    while (list.children.length > MOST) list.lastElementChild?.remove();
  }
}

/** @param {string} what */
const plural = (what) => what.replace(/^is /, "are ").replace(/^was /, "were ").replace(/^has /, "have ");

/**
 * @param {Rank} view
 * @param {Rank} before
 */
function stateWords(view, before) {
  if (view.state === "connected") return before.state === "silent" ? "sends again" : "is connected";
  return { silent: "is silent", died: "died", ended: "ended" }[view.state];
}
