// @ts-check
// What is wrong, in words, on top of the page: the most costly finding of each job, and ranks that are missing.

import { byId, element, setText } from "./dom.js";
import { integer, percent, rankName } from "./format.js";

/** @typedef {import("./format.js").Rank} Rank */
/** @typedef {import("./api").JobView} JobView */
/** @typedef {import("./api").JobVerdict} JobVerdict */

const MOST_JOBS = 5;
const MOST_RANKS = 16; // buttons
const NAMED = 3; // ranks with a sentence each
const ABSENT = 8;

export class Findings {
  #onChoose;
  #key = "";

  /** @param {(jobId: string, rank: number) => void} onChoose a rank of a finding is chosen */
  constructor(onChoose) {
    this.#onChoose = onChoose;
  }

  /** Another job is shown from now on. */
  reset() {
    this.#key = "";
    byId("findings").replaceChildren();
  }

  /**
   * Shows the most costly finding of each job. A finding that has not changed stays, so that readers of its evidence are not disturbed.
   * @param {JobVerdict[]} verdicts
   */
  update(verdicts) {
    const shown = verdicts.filter((verdict) => verdict.findings.length).sort((one, other) => other.findings[0].cost - one.findings[0].cost);
    const key = JSON.stringify(shown.map(({ job_id, findings }) => [job_id, findings]));
    if (key === this.#key) return;
    this.#key = key;
    const list = byId("findings");
    const open = new Set([...list.querySelectorAll("details[open]")].map((details) => details.closest("li")?.dataset.job));
    const several = shown.length > 1;
    const items = shown.slice(0, MOST_JOBS).map((verdict) => this.#item(verdict, several, open.has(verdict.job_id)));
    if (shown.length > MOST_JOBS) items.push(element("li", {}, `${integer(shown.length - MOST_JOBS)} more jobs have findings: choose one above.`));
    list.replaceChildren(...items);
  }

  /**
   * @param {JobVerdict} verdict
   * @param {boolean} several whether other jobs have findings, too
   * @param {boolean} open whether its evidence is shown
   */
  #item(verdict, several, open) {
    const [finding, ...others] = verdict.findings; // the most costly one first
    const title = `${several ? `${verdict.job_id}: ` : ""}${sentence(finding.title)}`;
    const cost = `It costs ${percent(finding.cost)} of the time (${finding.certainty}).`;
    const evidence = element("details", { open }, element("summary", {}, "Evidence"));
    if (finding.evidence.length) evidence.append(element("ul", {}, ...finding.evidence.map((text) => element("li", {}, text))));
    const judged = `From ${integer(verdict.steps)} steps of ${ranksText(verdict.ranks)}.`;
    const more = others.length ? ` Less costly: ${others.map((one) => one.title.replace(/\.$/, "")).join("; ")}.` : "";
    evidence.append(element("p", {}, judged + more));
    const item = element(
      "li",
      {},
      element("p", { className: "title" }, element("strong", {}, title), ` ${cost}`),
      ...(finding.action ? [element("p", {}, `Try: ${sentence(finding.action)}`, finding.gain ? ` Gain: ${sentence(finding.gain)}` : "")] : []),
      ...(finding.ranks.length ? [this.#ranks(verdict.job_id, finding.ranks)] : []),
      evidence,
    );
    item.dataset.job = verdict.job_id;
    return item;
  }

  /**
   * @param {string} jobId
   * @param {number[]} ranks
   */
  #ranks(jobId, ranks) {
    const buttons = ranks.slice(0, MOST_RANKS).map((rank) => {
      const choose = element("button", { type: "button", title: "Choose it in the chart and the table" }, `rank ${rank}`);
      choose.addEventListener("click", () => this.#onChoose(jobId, rank));
      return choose;
    });
    const more = ranks.length > MOST_RANKS ? [`and ${integer(ranks.length - MOST_RANKS)} more`] : [];
    return element("p", { className: "choices" }, ...buttons, ...more);
  }
}

/**
 * Ranks that are several processes, or missing.
 * @param {JobView} job
 * @param {Map<string, Rank>} ranks
 * @param {string | null} chosen
 */
export function showVerdict(job, ranks, chosen) {
  /** @type {string[]} */
  const texts = [];
  const shared = job.shared ? [...ranks.values()].filter((view) => view.others.length) : [];
  for (const view of shared.slice(0, NAMED)) {
    texts.push(`${rankName(view)} is several processes at once: on ${[`${view.host} (pid ${view.pid})`, ...view.others].join(", ")}.`);
  }
  if (job.shared > NAMED) texts.push(`${integer(job.shared)} ranks are.`);
  if (job.shared) texts.push("If these are several jobs, name them: trace(name=…), or STEPSCOPE_JOB.");
  if (job.died) {
    const died = [...ranks.values()].filter((view) => view.state === "died");
    texts.push(`Died: ${died.slice(0, ABSENT).map(rankName).join(", ")}${died.length > ABSENT ? ` and ${integer(died.length - ABSENT)} more` : ""}.`);
    texts.push("A connection was lost and no end came: a process was killed, is cut off, or sends to another collector now.");
  }
  if (job.absent.length && job.ranks) {
    texts.push(`Not seen yet: rank ${job.absent.slice(0, ABSENT).join(", ")}${job.absent.length > ABSENT ? " and more" : ""}.`);
  }
  if (job.restoring) texts.push(`The collector reads the files of ${integer(job.restoring)} earlier streams.`);
  if (!texts.length && !job.verdicts.some((verdict) => verdict.findings.length)) texts.push(nothingWrong(job, chosen));
  const verdict = byId("verdict");
  setText(verdict, texts.join(" "));
  verdict.classList.toggle("bad", job.shared + job.died > 0);
}

/**
 * @param {JobView} job
 * @param {string | null} chosen
 */
function nothingWrong(job, chosen) {
  if (!job.ranks) return chosen === null ? "Waiting for the first rank." : `No rank of the job ${chosen} is here.`;
  const steps = Math.max(0, ...job.verdicts.map((verdict) => verdict.steps));
  if (!steps) return "";
  return `Nothing stands out in ${job.ranks === 1 ? "" : "up to "}${integer(steps)} steps${job.ranks === 1 ? "" : " of each"}.`;
}

/** @param {string} text */
const sentence = (text) => (/[.!?]$/.test(text) ? text : `${text}.`);

/** @param {number} ranks */
const ranksText = (ranks) => (ranks === 1 ? "one rank" : `${integer(ranks)} ranks`);
