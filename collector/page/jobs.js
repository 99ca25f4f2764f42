// Which job is shown: the select says it, and so does the address (`?job=…`), so that it can be kept, sent and gone back to.

import { byId, element, say, whole } from "./format.js";

const ALL = "all jobs"; // what stands for them; jobs are numbered, as any text may be a job's name

const named = () => new URLSearchParams(location.search).get("job");

export class Jobs {
  chosen = named(); // null: all jobs
  #select = byId("jobs");
  #ids = [];
  #changed;

  // `changed`: another job is to be shown.
  constructor(changed) {
    this.#changed = changed;
    this.#select.addEventListener("change", () => {
      const value = this.#select.value;
      const id = value === ALL ? null : this.#ids[Number(value)];
      if (id === this.chosen) return;
      this.chosen = id;
      history.pushState(null, "", id === null ? location.pathname : `?${new URLSearchParams({ job: id })}`);
      this.#changed();
    });
    addEventListener("popstate", () => {
      if (named() === this.chosen) return;
      this.chosen = named();
      this.#choose();
      this.#changed();
    });
  }

  // `entries`: the jobs that the collector has. Nothing is to be chosen where there is one only.
  update(entries) {
    const known = new Map(entries.map((entry) => [entry.id, entry]));
    const ids = [...known.keys()];
    if (this.chosen !== null && !known.has(this.chosen)) ids.push(this.chosen);
    byId("job-choice").hidden = ids.length < 2;
    if (ids.join("\n") !== this.#ids.join("\n") || !this.#select.length) {
      this.#ids = ids;
      this.#select.replaceChildren(element("option", { value: ALL }), ...ids.map((_, at) => element("option", { value: String(at) })));
      this.#choose();
    }
    say(this.#select.options[0], `All ${whole(entries.length)} jobs`);
    ids.forEach((id, at) => say(this.#select.options[at + 1], `${id || "(unnamed)"} – ${facts(known.get(id))}`));
  }

  #choose() {
    const at = this.#ids.indexOf(this.chosen);
    this.#select.value = this.chosen === null ? ALL : String(at);
  }
}

function facts(entry) {
  if (!entry) return "not here";
  const told = [entry.ranks === 1 ? "1 rank" : `${whole(entry.ranks)} ranks`];
  if (!entry.connected) told.push("none connected");
  if (entry.died) told.push(`${whole(entry.died)} died`);
  if (entry.slow) told.push(`${whole(entry.slow)} slow`);
  return told.join(", ");
}
