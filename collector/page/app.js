// @ts-check
// The live page: receives the collector's snapshots and gives them to its parts.

import { onAddress } from "./address.js";
import { Changes } from "./changes.js";
import { StepChart } from "./chart.js";
import { byId, setText } from "./dom.js";
import { HeatMap } from "./heatmap.js";
import { Jobs } from "./jobs.js";
import { RankTable } from "./ranks.js";
import { RecordDialog } from "./record.js";
import { download, hasToken, listen, withQuery } from "./server.js";
import { showStatus, showSummary } from "./summary.js";
import { Findings, showVerdict } from "./verdict.js";
import { Windows } from "./windows.js";

/** @typedef {import("./format.js").Rank} Rank */

/** @type {Map<string, Rank>} */
const ranks = new Map();
/** @type {import("./api").JobView | null} */
let job = null;
let connection = new AbortController();

const jobs = new Jobs(changeJob);
const chart = new StepChart();
const windows = new Windows();
const changes = new Changes();
const recording = new RecordDialog();
const table = new RankTable(
  () => chart.update([...ranks.values()], table.chosen, jobs.chosen).catch(showError),
  (id) => windows.openRank(id),
);
const heatMap = new HeatMap((id) => table.choose([id]));
const findings = new Findings((jobId, rank) => {
  const ids = [...ranks.values()].filter((view) => view.job_id === jobId && view.rank === rank).map((view) => view.id);
  table.choose(ids);
});

// Shows another job: what was received of the one before is forgotten.
function changeJob() {
  job = null;
  ranks.clear();
  for (const part of [chart, heatMap, windows, changes, table, findings]) part.reset();
  for (const id of ["summary", "verdict"]) byId(id).replaceChildren();
  restore();
  showConnection("connecting", false);
  connection.abort();
}

// Shows what the address says.
function restore() {
  for (const part of [chart, heatMap, table]) part.restore();
}

/**
 * @param {string | undefined} kind
 * @param {import("./api").Snapshot} snapshot
 */
function onSnapshot(kind, snapshot) {
  if (kind !== "snapshot") return;
  if (snapshot.full) ranks.clear();
  for (const view of snapshot.ranks) ranks.set(view.id, view);
  for (const id of snapshot.gone) ranks.delete(id);
  labelJobs();
  job = snapshot.job;
  if (snapshot.jobs) jobs.update(snapshot.jobs);
  showConnection("live", true);
  changes.update([...ranks.values()], snapshot.at_ns);
  show();
}

// Ranks of several jobs have the same numbers: then each is shown with its job.
function labelJobs() {
  const several = new Set([...ranks.values()].map((view) => view.job_id)).size > 1;
  for (const view of ranks.values()) {
    const jobLabel = several ? view.job_id : "";
    if ((view.jobLabel ?? "") !== jobLabel) ranks.set(view.id, { ...view, jobLabel });
  }
}

// Draws everything, if somebody can see it.
function show() {
  if (job === null || document.hidden) return;
  const views = [...ranks.values()];
  const chosen = jobs.chosen;
  const names = chosen === null ? job.jobs : [chosen];
  showSummary(job);
  setText(byId("job"), byId("job-choice").hidden ? names.filter((name) => name !== "stepscope").join(", ") : "");
  document.title = `${job.slow || job.died ? "⚠ " : ""}${names.join(", ") || "stepscope"} – stepscope`;
  findings.update(job.verdicts);
  showVerdict(job, ranks, chosen);
  showStatus(job);
  byId("record-button").hidden = job.exposed || !job.connected; // an exposed collector takes no orders
  table.update(views);
  Promise.all([chart.update(views, table.chosen, chosen), heatMap.update(ranks, chosen), windows.update(job, views, chosen)]).catch((error) => {
    if (chosen === jobs.chosen) showError(error);
  });
}

/** @param {Error} error */
const showError = (error) => showConnection(error.message, false);

/**
 * @param {string} text
 * @param {boolean} live
 */
function showConnection(text, live) {
  setText(byId("link"), text);
  byId("link").classList.toggle("live", live);
}

async function follow() {
  let delay = 500;
  for (;;) {
    const started = performance.now();
    const { signal } = (connection = new AbortController());
    try {
      await listen(withQuery("/v1/events", { job: jobs.chosen }), onSnapshot, signal);
      if (!signal.aborted) showConnection("the collector has stopped; trying again", false);
    } catch (error) {
      if (!signal.aborted) showConnection(`not connected: ${/** @type {Error} */ (error).message}; trying again`, false);
    }
    if (signal.aborted) continue; // another job is shown
    delay = performance.now() - started > 5000 ? 500 : Math.min(delay * 2, 5000);
    await new Promise((resolve) => setTimeout(resolve, delay));
  }
}

onAddress(() => {
  if (jobs.restore()) changeJob();
  else restore();
});
document.addEventListener("visibilitychange", show);
byId("record-button").addEventListener("click", () => recording.open([...ranks.values()], table.chosenViews(), jobs.chosen));
byId("metrics").addEventListener("click", (event) => {
  if (!hasToken()) return;
  event.preventDefault();
  download("/metrics").catch((error) => changes.note(error.message));
});
follow();
