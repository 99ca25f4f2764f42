// The live page: takes the collector's snapshots and gives them to its parts.

import { Changes } from "./changes.js";
import { StepChart } from "./chart.js";
import { byId, bytes, clock, count, element, milliseconds, rankName, say, whole } from "./format.js";
import { Jobs } from "./jobs.js";
import { RankTable } from "./ranks.js";
import { download, hasToken, listen, withQuery } from "./server.js";
import { Windows } from "./windows.js";

const ranks = new Map();
const jobs = new Jobs(() => {
  job = null;
  ranks.clear();
  for (const part of [chart, windows, changes, table]) part.reset();
  for (const id of ["summary", "verdict"]) byId(id).replaceChildren();
  link("connecting", false);
  listening.abort();
});
const chart = new StepChart();
const windows = new Windows();
const changes = new Changes();
const table = new RankTable(
  () => chart.update(listed(), table.chosen, jobs.chosen),
  (id) => windows.openRank(id),
);
let job = null;
let listening = new AbortController();

const listed = () => [...ranks.values()];

function taken(kind, snapshot) {
  if (kind !== "snapshot") return;
  if (snapshot.full) ranks.clear();
  for (const view of snapshot.ranks) ranks.set(view.id, view);
  for (const change of snapshot.changed) ranks.set(change.id, { ...ranks.get(change.id), ...change });
  for (const id of snapshot.gone) ranks.delete(id);
  tellJobsApart();
  job = snapshot.job;
  if (snapshot.jobs) jobs.update(snapshot.jobs);
  link("live", true);
  changes.update(listed(), snapshot.at_ns);
  show();
}

// What nobody sees is not drawn.
function show() {
  if (job === null || document.hidden) return;
  const all = listed();
  summary();
  verdict();
  stored();
  table.update(all);
  const asked = jobs.chosen;
  Promise.all([chart.update(all, table.chosen, asked), windows.update(job, all, asked)]).catch((error) => {
    if (asked === jobs.chosen) link(error.message, false);
  });
}

// Ranks of several jobs have the same numbers: then each says whose it is.
function tellJobsApart() {
  const several = new Set(listed().map((view) => view.job_id)).size > 1;
  for (const view of listed()) {
    const of = several ? view.job_id : "";
    if ((view.of ?? "") !== of) ranks.set(view.id, { ...view, of });
  }
}

function link(text, live) {
  say(byId("link"), text);
  byId("link").classList.toggle("live", live);
}

function summary() {
  const there = job.world_size === null ? whole(job.ranks) : `${whole(job.ranks)} of ${whole(job.world_size)}`;
  const states = ["connected", "silent", "died", "ended"].filter((state) => job[state]).map((state) => `${whole(job[state])} ${state}`);
  const facts = [
    ["Ranks", there, states.join(", ")],
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
    say(first, value);
    say(second, more);
  });
  list.lastChild.classList.toggle("bad", job.dropped > 0);
  const names = jobs.chosen === null ? job.jobs : [jobs.chosen];
  say(byId("job"), byId("job-choice").hidden ? names.filter((name) => name !== "stepscope").join(", ") : "");
  document.title = `${job.slowest.length || job.died ? "⚠ " : ""}${names.join(", ") || "stepscope"} – stepscope`;
  byId("exposed").hidden = !job.exposed;
  say(byId("version"), `stepscope ${job.version}, collecting since ${new Date(job.started_ns / 1e6).toLocaleString("en-GB")}`);
}

function disk(storage) {
  if (!storage) return ["–", ""];
  const events = storage.discarded_events ? `, ${count(storage.discarded_events)} events evicted` : "";
  const given = storage.deleted_streams ? `${events}, ${whole(storage.deleted_streams)} runs deleted` : events;
  const limit = storage.limit_bytes === null ? `${bytes(storage.free_bytes)} free` : `of ${bytes(storage.limit_bytes)}`;
  return [bytes(storage.used_bytes), `${limit}${given}`];
}

function stored() {
  const { storage, upload, nats } = job;
  const told = [];
  const ended = job.parts.filter((part) => part.problem);
  for (const part of ended) told.push(`A part of the collector has ended, ${part.name}: ${part.problem}. Restart the collector.`);
  if (storage?.problem) told.push(`${storage.problem}.`);
  if (job.unwritten_lines) told.push(`${whole(job.unwritten_lines)} lines of the audit could not be written.`);
  if (upload) {
    const behind = upload.waiting_bytes ? `, ${bytes(upload.waiting_bytes)} to go` : "";
    const at = upload.at_ns === null ? "" : ` as of ${clock(upload.at_ns / 1e9)}`;
    told.push(`Uploads to ${upload.url}: ${whole(upload.complete)} of ${whole(upload.streams)} streams complete${behind}${at}.`);
    if (upload.problem) told.push(`The upload fails, and is tried again: ${upload.problem}.`);
  }
  if (nats) {
    const given = nats.malformed_messages ? `, ${whole(nats.malformed_messages)} messages given up as unreadable` : "";
    told.push(`Takes ${whole(nats.streams)} streams from ${nats.servers.join(", ")}${given}.`);
    if (nats.problem) told.push(`Not everything can be taken from NATS, and it is tried again: ${nats.problem}.`);
  }
  say(byId("stored"), told.join(" "));
  byId("stored").hidden = !told.length;
  byId("stored").classList.toggle("bad", Boolean(ended.length || job.unwritten_lines || storage?.problem || upload?.problem || nats?.problem));
}

function verdict() {
  const told = [];
  for (const slow of job.slowest.slice(0, 3)) {
    told.push(
      `${rankName(ranks.get(slow.id) ?? slow)} on ${slow.host} is slow: ${milliseconds(slow.step_ms)} ${slow.own ? "of its own work in a step" : "a step"}, ` +
        `${slow.factor.toFixed(1)} times the others' ${milliseconds(slow.others_ms)}.`,
    );
  }
  if (job.slowest.length > 3) told.push(`${job.slowest.length - 3} more are slow.`);
  const shared = listed().filter((view) => view.others.length);
  for (const view of shared.slice(0, 3)) {
    told.push(`${rankName(view)} is several processes at once: on ${[`${view.host} (pid ${view.pid})`, ...view.others].join(", ")}.`);
  }
  if (job.shared) told.push(`${job.shared > 3 ? `${whole(job.shared)} ranks are. ` : ""}If these are several jobs, name them: trace(name=…), or STEPSCOPE_JOB.`);
  if (job.absent.length && job.ranks) {
    const some = job.absent.slice(0, 8).join(", ");
    told.push(`Not seen yet: rank ${some}${job.absent.length > 8 ? " and more" : ""}.`);
  }
  if (job.restoring) told.push(`The files of ${whole(job.restoring)} earlier streams are being read.`);
  if (!told.length && job.ranks !== 1) told.push(job.ranks ? "No rank is slower than by chance." : waiting());
  say(byId("verdict"), told.join(" "));
  byId("verdict").classList.toggle("bad", job.slowest.length > 0 || job.shared > 0);
}

const waiting = () => (jobs.chosen === null ? "Waiting for the first rank." : `No rank of the job ${jobs.chosen} is here.`);

async function follow() {
  let delay = 500;
  for (;;) {
    const started = performance.now();
    const { signal } = (listening = new AbortController());
    try {
      await listen(withQuery("/v1/events", { job: jobs.chosen }), taken, signal);
      if (!signal.aborted) link("the collector has stopped; trying again", false);
    } catch (error) {
      if (!signal.aborted) link(`not connected: ${error.message}; trying again`, false);
    }
    if (signal.aborted) continue; // another job was chosen
    delay = performance.now() - started > 5000 ? 500 : Math.min(delay * 2, 5000);
    await new Promise((resolve) => setTimeout(resolve, delay));
  }
}

document.addEventListener("visibilitychange", show);
byId("metrics").addEventListener("click", (event) => {
  if (!hasToken()) return;
  event.preventDefault();
  download("/metrics").catch((error) => changes.note(error.message));
});
follow();
