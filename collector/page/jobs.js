// @ts-check
// The job that is shown: the select has it, and so does the address (`?job=…`).

import { fromAddress, pushAddress } from "./address.js";
import { byId, element, setText } from "./dom.js";
import { integer } from "./format.js";

const ALL = "all jobs"; // stands for them; jobs are numbered, as any text may be a job's name

export class Jobs {
  /** @type {string | null} null: all jobs */
  chosen = fromAddress("job");
  #select = byId("jobs", HTMLSelectElement);
  /** @type {string[]} */
  #ids = [];

  /** @param {() => void} onChange the user has chosen another job */
  constructor(onChange) {
    this.#select.addEventListener("change", () => {
      const { value } = this.#select;
      const id = value === ALL ? null : this.#ids[Number(value)];
      if (id === this.chosen) return;
      this.chosen = id;
      // What was chosen of one job is nothing of another.
      pushAddress({ job: id, t: null, ranks: null, map: null });
      onChange();
    });
  }

  /** Takes the job of the address; returns whether it is another one. */
  restore() {
    const before = this.chosen;
    this.chosen = fromAddress("job");
    this.#selectChosen();
    return this.chosen !== before;
  }

  /** @param {import("./api").JobEntry[]} entries the jobs that the collector has */
  update(entries) {
    const known = new Map(entries.map((entry) => [entry.id, entry]));
    const ids = [...known.keys()];
    if (this.chosen !== null && !known.has(this.chosen)) ids.push(this.chosen);
    byId("job-choice").hidden = ids.length < 2; // there is nothing to choose
    if (ids.join("\n") !== this.#ids.join("\n") || !this.#select.length) {
      this.#ids = ids;
      this.#select.replaceChildren(element("option", { value: ALL }), ...ids.map((_, at) => element("option", { value: String(at) })));
      this.#selectChosen();
    }
    setText(this.#select.options[0], `All ${integer(entries.length)} jobs`);
    ids.forEach((id, at) => setText(this.#select.options[at + 1], `${id || "(unnamed)"} – ${facts(known.get(id))}`));
  }

  #selectChosen() {
    this.#select.value = this.chosen === null ? ALL : String(this.#ids.indexOf(this.chosen));
  }
}

/** @param {import("./api").JobEntry | undefined} entry */
function facts(entry) {
  if (!entry) return "not here";
  const parts = [entry.ranks === 1 ? "1 rank" : `${integer(entry.ranks)} ranks`];
  if (!entry.connected) parts.push("none connected");
  if (entry.died) parts.push(`${integer(entry.died)} died`);
  if (entry.slow) parts.push(`${integer(entry.slow)} slow`);
  return parts.join(", ");
}
