// @ts-check
// Requests to the collector, with the token in a header if it wants one.

import { byId } from "./dom.js";

const KEY = "stepscope token";
/** @type {Promise<void> | null} */
let dialogOpen = null;

export class ServerError extends Error {
  /**
   * @param {Response} answer
   * @param {string} message
   */
  constructor(answer, message) {
    super(message);
    this.status = answer.status;
    /** Whether the token lacks the scope that the request needs. */
    this.lacksScope = answer.status === 403 && answer.headers.has("WWW-Authenticate");
  }
}

/** @param {string | null} token @returns {Record<string, string>} */
const headers = (token) => (token ? { Authorization: `Bearer ${token}` } : {});

export const hasToken = () => sessionStorage.getItem(KEY) !== null;

/**
 * Asks the user for the token, once for all requests that need it.
 * @param {string} wrong what is wrong with the one that was sent
 */
function askForToken(wrong) {
  dialogOpen ??= new Promise((resolve) => {
    const dialog = byId("token", HTMLDialogElement);
    const field = byId("token-field", HTMLInputElement);
    byId("token-wrong").textContent = hasToken() ? wrong : "";
    field.value = "";
    dialog.addEventListener(
      "close",
      () => {
        dialogOpen = null;
        if (field.value) sessionStorage.setItem(KEY, field.value.trim());
        field.value = "";
        resolve();
      },
      { once: true },
    );
    if (!dialog.open) dialog.showModal();
    field.focus();
  });
  return dialogOpen;
}

/** @param {Response} answer */
async function failure(answer) {
  let text = `${answer.status} ${answer.statusText}`;
  if (answer.headers.get("Content-Type")?.includes("json")) {
    /** @type {import("./api").Problem} */
    const problem = await answer.json();
    text = problem.detail || problem.title;
  }
  return new ServerError(answer, text);
}

/**
 * The answer to a request. If the token is not accepted the user is asked for another one.
 * @param {string} path
 * @param {RequestInit & { headers?: Record<string, string> }} [options]
 * @throws {ServerError} with the collector's reason
 */
export async function request(path, options = {}) {
  for (;;) {
    const token = sessionStorage.getItem(KEY);
    const answer = await fetch(path, { ...options, headers: { ...headers(token), ...options.headers }, cache: "no-store" });
    if (answer.ok) return answer;
    const error = await failure(answer);
    if (error.status !== 401 && !error.lacksScope) throw error;
    // Another request may have asked for the token meanwhile.
    if (sessionStorage.getItem(KEY) === token) await askForToken(error.lacksScope ? error.message : "That is not the token.");
  }
}

/** @param {string} path */
export const json = async (path) => (await request(path)).json();

/**
 * Orders windows, with the token of the page, or another one that is for this request only and is not stored.
 * @param {import("./api").WindowOrder} order
 * @param {string} token empty: that of the page
 * @returns {Promise<import("./api").OrderResult>}
 * @throws {ServerError} with the collector's reason
 */
export async function orderWindows(order, token) {
  const body = JSON.stringify(order);
  const answer = await fetch("/v1/windows", { method: "POST", body, headers: headers(token || sessionStorage.getItem(KEY)), cache: "no-store" });
  if (!answer.ok) throw await failure(answer);
  return answer.json();
}

/**
 * Receives server-sent events over fetch, which can send a header, until the collector or `signal` ends it.
 * @param {string} path
 * @param {(kind: string | undefined, data: any) => void} onEvent
 * @param {AbortSignal} signal
 */
export async function listen(path, onEvent, signal) {
  const answer = await request(path, { headers: { Accept: "text/event-stream" }, signal });
  if (!answer.body) return;
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  /** @type {string[]} */
  let parts = []; // of an event that is not complete yet
  for (;;) {
    const { value, done } = await reader.read();
    if (done || signal.aborted) return;
    parts.push(value);
    // A thousand ranks come in many pieces: they are joined once, after the last one.
    if (!value.endsWith("\n") && !value.includes("\n\n")) continue;
    const events = parts.join("").split("\n\n");
    parts = [events.pop() ?? ""];
    for (const event of events) {
      const kind = event.match(/^event: (.*)$/m)?.[1];
      const data = event.match(/^data: (.*)$/m)?.[1];
      if (kind === "end") return;
      if (data) onEvent(kind, JSON.parse(data));
    }
  }
}

/**
 * A path with parameters; those that are null are left out.
 * @param {string} path
 * @param {Record<string, string | number | null>} parameters
 */
export function withQuery(path, parameters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) if (value !== null) query.set(name, String(value));
  return query.size ? `${path}?${query}` : path;
}

/**
 * Has the browser save a file: where there is a token, with a ticket for this one download.
 * @param {string} path
 */
export async function download(path) {
  let address = path;
  if (hasToken()) {
    const answer = await request("/v1/tickets", { method: "POST", body: JSON.stringify({ path }) });
    address = `${path}${path.includes("?") ? "&" : "?"}ticket=${encodeURIComponent((await answer.json()).ticket)}`;
  }
  const link = document.createElement("a");
  link.href = address;
  link.download = "";
  document.body.append(link);
  link.click();
  link.remove();
}

const PERFETTO = "https://ui.perfetto.dev";

/**
 * Opens Perfetto's page and sends it a trace, which stays in the browser.
 * @param {string} path
 * @param {string} title
 * @param {(text: string) => void} onProgress
 */
export async function openInPerfetto(path, title, onProgress) {
  const other = window.open(PERFETTO);
  if (!other) throw new Error("the browser did not open another window");
  onProgress("making the trace …");
  const buffer = await (await request(path)).arrayBuffer();
  onProgress("waiting for Perfetto's page …");
  await /** @type {Promise<void>} */ (
    new Promise((resolve, reject) => {
      const stop = () => {
        clearInterval(ping);
        clearTimeout(limit);
        removeEventListener("message", onMessage);
      };
      const onMessage = (/** @type {MessageEvent} */ message) => {
        if (message.origin !== PERFETTO || message.data !== "PONG") return;
        stop();
        other.postMessage({ perfetto: { buffer, title } }, PERFETTO);
        resolve();
      };
      const ping = setInterval(() => other.postMessage("PING", PERFETTO), 100);
      const limit = setTimeout(() => {
        stop();
        reject(new Error("Perfetto's page did not answer; download the trace"));
      }, 60000);
      addEventListener("message", onMessage);
    })
  );
  onProgress("opened in Perfetto");
}
