// @ts-check
// The figures on top of the page, and what its reader should know of the collector itself.

import { byId, element, setText } from "./dom.js";
import { bytes, clock, count, integer, milliseconds } from "./format.js";

/** @typedef {import("./api").JobView} JobView */

/** @param {JobView} job */
export function showSummary(job) {
  const ranks = job.world_size === null ? integer(job.ranks) : `${integer(job.ranks)} of ${integer(job.world_size)}`;
  const states = /** @type {const} */ (["connected", "silent", "died", "ended"]).filter((state) => job[state]);
  const facts = [
    ["Ranks", ranks, states.map((state) => `${integer(job[state])} ${state}`).join(", ")],
    ["Step time", milliseconds(job.step_ms), "median of the ranks"],
    ["Events", `${count(job.events_per_s)}/s`, `${count(job.events)} in all`],
    ["Data", `${bytes(job.bytes_per_s)}/s`, `${bytes(job.bytes)} in all`],
    ["Disk", ...disk(job.storage)],
    ["Lost", count(job.dropped), job.dropped ? "events, by the ledgers" : "nothing, by the ledgers"],
  ];
  const list = byId("summary");
  if (!list.children.length) {
    for (const [title] of facts) {
      list.append(element("div", {}, element("dt", {}, title), element("dd", { className: "value" }), element("dd", { className: "quiet" })));
    }
  }
  facts.forEach(([, value, more], index) => {
    const [, first, second] = list.children[index].children;
    setText(first, value);
    setText(second, more);
  });
  list.lastElementChild?.classList.toggle("bad", job.dropped > 0);
  byId("exposed").hidden = !job.exposed;
  setText(byId("version"), `stepscope ${job.version}, collecting since ${new Date(job.started_ns / 1e6).toLocaleString("en-GB")}`);
}

/** @param {JobView["storage"]} storage */
function disk(storage) {
  if (!storage) return ["–", ""];
  const events = storage.discarded_events ? `, ${count(storage.discarded_events)} events evicted` : "";
  const runs = storage.deleted_streams ? `, ${integer(storage.deleted_streams)} runs deleted` : "";
  const limit = storage.limit_bytes === null ? `${bytes(storage.free_bytes)} free` : `of ${bytes(storage.limit_bytes)}`;
  return [bytes(storage.used_bytes), `${limit}${events}${runs}`];
}

/**
 * Faults of the collector, uploads and NATS.
 * @param {JobView} job
 */
export function showStatus({ storage, upload, nats, parts, unwritten_lines }) {
  const texts = [];
  const ended = parts.filter((part) => part.problem);
  for (const part of ended) texts.push(`A part of the collector has ended, ${part.name}: ${part.problem}. Restart the collector.`);
  if (storage?.problem) texts.push(`${storage.problem}.`);
  if (unwritten_lines) texts.push(`The collector could not write ${integer(unwritten_lines)} lines of the audit.`);
  if (upload) {
    const waiting = upload.waiting_bytes ? `, ${bytes(upload.waiting_bytes)} to go` : "";
    const at = upload.at_ns === null ? "" : ` as of ${clock(upload.at_ns / 1e9)}`;
    texts.push(`Uploads to ${upload.url}: ${integer(upload.complete)} of ${integer(upload.streams)} streams complete${waiting}${at}.`);
    if (upload.problem) texts.push(`The upload fails, and the collector tries again: ${upload.problem}.`);
  }
  if (nats) {
    const malformed = nats.malformed_messages ? ` It skipped ${integer(nats.malformed_messages)} messages that it could not read.` : "";
    texts.push(`The collector reads ${integer(nats.streams)} streams from ${nats.servers.join(", ")}.${malformed}`);
    if (nats.problem) texts.push(`It cannot read all from NATS, and tries again: ${nats.problem}.`);
  }
  const status = byId("status");
  setText(status, texts.join(" "));
  status.hidden = !texts.length;
  status.classList.toggle("bad", Boolean(ended.length || unwritten_lines || storage?.problem || upload?.problem || nats?.problem));
}
