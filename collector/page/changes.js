// What has changed of the ranks, in words: for those who look away, and for those who listen.

import { byId, clock, element, rankName, whole } from "./format.js";

const KEPT = 60;
const EACH = 4; // more changes of a kind at once are told as a number

export class Changes {
  #known = new Map();
  #first = true;

  update(ranks, atNs) {
    const happened = new Map();
    const tell = (what, view) => happened.set(what, [...(happened.get(what) ?? []), view]);
    for (const view of ranks) {
      const before = this.#known.get(view.id);
      this.#known.set(view.id, view);
      if (this.#first) continue;
      if (!before) tell(words(view, view), view);
      else if (view.incarnation > before.incarnation) tell("was started again", view);
      else if (view.state !== before.state) tell(words(view, before), view);
      if (before && view.slow_factor !== null && before.slow_factor === null) tell("is slow", view);
      if (before && view.slow_factor === null && before.slow_factor !== null) tell("is not slow any more", view);
      if (before && view.dropped > before.dropped && before.dropped === 0) tell("has lost events", view);
    }
    this.#first = false;
    for (const [what, views] of happened) {
      if (views.length > EACH) this.#say(`${whole(views.length)} ranks ${several(what)}`, atNs, what);
      else for (const view of views) this.#say(`${rankName(view)} ${what}`, atNs, what);
    }
  }

  // Other ranks are shown from now on: what they do first is nothing new.
  reset() {
    this.#known.clear();
    this.#first = true;
    byId("changes").replaceChildren();
  }

  note(text) {
    this.#say(text, Date.now() * 1e6, "");
  }

  #say(text, atNs, what) {
    const list = byId("changes");
    const bad = ["died", "is slow", "has lost events"].includes(what);
    list.prepend(element("li", { className: bad ? "bad" : "" }, element("time", {}, clock(atNs / 1e9)), ` ${text}`));
    while (list.children.length > KEPT) list.lastChild.remove();
  }
}

const several = (what) => what.replace(/^(is|was|has) /, (word) => ({ is: "are ", was: "were ", has: "have " })[word.trim()]);

function words(view, before) {
  if (view.state === "connected") return before.state === "silent" ? "is heard again" : "is connected";
  return { silent: "is silent", died: "died", ended: "ended" }[view.state];
}
