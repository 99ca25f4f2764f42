// @ts-check
// The dialog that orders a window: some steps of the chosen ranks, or of all.

import { byId, element, setText } from "./dom.js";
import { integer, rankName } from "./format.js";
import { orderWindows, ServerError } from "./server.js";
import { VirtualRows } from "./virtual_rows.js";
import { table } from "./windows.js";

/** @typedef {import("./format.js").Rank} Rank */
/** @typedef {import("./api").OrderResult} OrderResult */
/** @typedef {import("./api").OrderedRank} OrderedRank */

const OUTCOMES = { done: "All ranks record", partly: "Not all ranks record", refused: "No rank records" };

/**
 * Numbers of ranks as the collector takes them, such as `0-3,7`.
 * @param {number[]} numbers
 */
export function ranksText(numbers) {
  const ordered = [...new Set(numbers)].sort((one, other) => one - other);
  /** @type {[number, number][]} */
  const parts = [];
  for (const number of ordered) {
    const last = parts.at(-1);
    if (last && last[1] === number - 1) last[1] = number;
    else parts.push([number, number]);
  }
  return parts.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(",");
}

export class RecordDialog {
  #dialog = byId("record", HTMLDialogElement);
  #form = byId("record-form", HTMLFormElement);
  #job = byId("record-job", HTMLSelectElement);
  #ranks = byId("record-ranks", HTMLInputElement);
  #steps = byId("record-steps", HTMLInputElement);
  #warmup = byId("record-warmup", HTMLInputElement);
  #token = byId("record-token", HTMLInputElement);
  /** @type {string[]} */
  #jobs = [];
  /** @type {Rank[]} */
  #chosen = [];
  /** @type {VirtualRows<OrderedRank> | null} */
  #rows = null;

  constructor() {
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    this.#job.addEventListener("change", () => this.#fillRanks());
    this.#dialog.addEventListener("close", () => {
      this.#token.value = "";
      this.#clear();
    });
  }

  /**
   * @param {Rank[]} views all ranks that are shown
   * @param {Rank[]} chosen those to record; none: all
   * @param {string | null} jobId of the job that is shown, null: all jobs
   */
  open(views, chosen, jobId) {
    const jobs = new Set((chosen.length ? chosen : views).map((view) => view.job_id));
    if (jobId !== null && !chosen.length) jobs.add(jobId);
    this.#jobs = [...jobs];
    this.#job.replaceChildren(...this.#jobs.map((id, at) => element("option", { value: String(at) }, id || "(unnamed)")));
    const preferred = jobId === null ? -1 : this.#jobs.indexOf(jobId);
    this.#job.selectedIndex = Math.max(preferred, 0);
    byId("record-job-label").hidden = this.#jobs.length < 2;
    this.#chosen = chosen;
    this.#fillRanks();
    byId("record-token-label").hidden = true;
    setText(byId("record-scope"), "");
    this.#clear();
    this.#dialog.showModal();
    this.#steps.focus();
  }

  /** Names the chosen ranks of the job that is selected. */
  #fillRanks() {
    const job = this.#jobs[Number(this.#job.value)];
    this.#ranks.value = ranksText(this.#chosen.filter((view) => view.job_id === job).flatMap((view) => view.rank ?? []));
  }

  #clear() {
    this.#rows?.remove();
    this.#rows = null;
    byId("record-answer").replaceChildren();
    byId("record-answer").hidden = true;
    setText(byId("record-status"), "");
    byId("record-status").classList.remove("wrong");
  }

  async #send() {
    const submit = byId("record-submit", HTMLButtonElement);
    if (submit.disabled) return;
    const nobody = this.#chosen.length > 0 && this.#chosen.every((view) => typeof view.rank !== "number");
    if (nobody && !this.#ranks.value.trim()) {
      this.#showError(new Error("The chosen processes have no rank, so they cannot be ordered apart from the others."));
      return;
    }
    submit.disabled = true;
    this.#clear();
    setText(byId("record-scope"), "");
    setText(byId("record-status"), "The collector asks the ranks …");
    try {
      const result = await orderWindows(
        {
          command: "arm",
          job: this.#jobs[Number(this.#job.value)] ?? "",
          ranks: this.#ranks.value.trim() || null,
          steps: Number(this.#steps.value),
          warmup: Number(this.#warmup.value),
          overlap: "queue",
        },
        this.#token.value.trim(),
      );
      this.#show(result);
    } catch (error) {
      this.#showError(/** @type {Error} */ (error));
    } finally {
      submit.disabled = false;
    }
  }

  /** @param {Error} error */
  #showError(error) {
    setText(byId("record-status"), "");
    const token = error instanceof ServerError && (error.status === 401 || error.lacksScope);
    if (token) {
      const wrong = error.status === 401 && this.#token.value ? "The collector does not know that token. " : "";
      setText(byId("record-scope"), `${wrong}${error.lacksScope ? error.message : "Recording requires a token with the scope 'control'"}.`);
      byId("record-token-label").hidden = false;
      this.#token.focus();
      this.#token.select();
      return;
    }
    setText(byId("record-status"), error.message);
    byId("record-status").classList.add("wrong");
  }

  /** @param {OrderResult} result */
  #show({ outcome, reason, first, last, ranks }) {
    this.#token.value = "";
    const recording = ranks.filter((rank) => rank.obeys).length;
    const steps = typeof first === "number" ? `, steps ${integer(first)} to ${integer(last)}` : "";
    const number = outcome === "refused" ? "" : ` (${integer(recording)} of ${integer(ranks.length)})`;
    setText(byId("record-status"), `${OUTCOMES[outcome]}${number}${outcome === "refused" ? "" : steps}${reason ? `: ${reason}` : ""}.`);
    byId("record-status").classList.toggle("wrong", outcome !== "done");
    if (!ranks.length) return;
    const answer = byId("record-answer");
    answer.hidden = false;
    const created = table(["Rank", "Host", "Step", "Records", "Answer"], []);
    answer.replaceChildren(created);
    this.#rows = new VirtualRows(created, {
      key: (/** @type {OrderedRank} */ rank) => `${rank.id} ${rank.host} ${rank.pid}`,
      create: (rank) => {
        const texts = [rankName(rank), rank.host, integer(rank.step), rank.obeys ? "yes" : "no", rank.text];
        const [name, host, step, ...rest] = texts;
        const cells = [element("td", {}, host), element("td", { className: "number" }, step), ...rest.map((text) => element("td", {}, text))];
        return { node: element("tr", {}, element("th", { scope: "row" }, name), ...cells), texts };
      },
    });
    // Those that do not record come first: they are what is to be done.
    this.#rows.show(ranks.toSorted((one, other) => Number(one.obeys) - Number(other.obeys) || (one.rank ?? 0) - (other.rank ?? 0)));
  }
}
