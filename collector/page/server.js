// Everything that is asked of the collector: with the token in a header if it wants one.

import { byId } from "./format.js";

const KEY = "stepscope token";
let asking = null;

function headers() {
  const token = sessionStorage.getItem(KEY);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

export const hasToken = () => sessionStorage.getItem(KEY) !== null;

// Asks for the token, once for all requests that need it; `wrong` says what is wrong with the one that was shown.
function ask(wrong) {
  asking ??= new Promise((resolve) => {
    const dialog = byId("token");
    const field = byId("token-field");
    byId("token-wrong").textContent = hasToken() ? wrong : "";
    field.value = "";
    dialog.addEventListener(
      "close",
      () => {
        asking = null;
        if (field.value) sessionStorage.setItem(KEY, field.value.trim());
        field.value = "";
        resolve();
      },
      { once: true },
    );
    if (!dialog.open) dialog.showModal();
    field.focus();
  });
  return asking;
}

async function problem(answer) {
  try {
    const told = await answer.json();
    return told.detail || told.title;
  } catch {
    return `${answer.status} ${answer.statusText}`;
  }
}

// The answer to a request; raises an error that says why there is none.
export async function request(path, options = {}) {
  for (;;) {
    const used = sessionStorage.getItem(KEY);
    const answer = await fetch(path, { ...options, headers: { ...headers(), ...options.headers }, cache: "no-store" });
    // The second is that of a token that does not allow this.
    if (answer.status === 401 || (answer.status === 403 && answer.headers.has("WWW-Authenticate"))) {
      const wrong = answer.status === 401 ? "That is not the token." : await problem(answer);
      // Another request may have asked for the token meanwhile.
      if (sessionStorage.getItem(KEY) === used) await ask(wrong);
      continue;
    }
    if (!answer.ok) throw new Error(await problem(answer));
    return answer;
  }
}

export const json = async (path) => (await request(path)).json();

// Server-sent events over fetch, which can send a header; `taken` gets the data of each event. Over when `signal` says so.
export async function listen(path, taken, signal) {
  const answer = await request(path, { headers: { Accept: "text/event-stream" }, signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let parts = []; // of an event that is not whole yet
  for (;;) {
    const { value, done } = await reader.read();
    if (done || signal.aborted) return;
    parts.push(value);
    // A thousand ranks come in many pieces: they are joined once, when the last has come.
    if (!value.endsWith("\n") && !value.includes("\n\n")) continue;
    const events = parts.join("").split("\n\n");
    parts = [events.pop()];
    for (const event of events) {
      const kind = event.match(/^event: (.*)$/m)?.[1];
      const data = event.match(/^data: (.*)$/m)?.[1];
      if (kind === "end") return;
      if (data) taken(kind, JSON.parse(data));
    }
  }
}

// An address with parameters; those that are null are left out.
export function withQuery(path, parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null);
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

// Has the browser save a file: where there is a token, with a ticket for this one download.
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

// Opens Perfetto's page and hands it a trace, which stays in the browser.
export async function openInPerfetto(path, title, said) {
  const other = window.open(PERFETTO);
  if (!other) throw new Error("the browser did not open another window");
  said("making the trace …");
  const buffer = await (await request(path)).arrayBuffer();
  said("waiting for Perfetto's page …");
  await new Promise((resolve, reject) => {
    const ping = setInterval(() => other.postMessage("PING", PERFETTO), 100);
    const over = (end, value) => {
      clearInterval(ping);
      clearTimeout(limit);
      removeEventListener("message", heard);
      end(value);
    };
    const limit = setTimeout(() => over(reject, new Error("Perfetto's page did not answer; download the trace")), 60000);
    const heard = (message) => {
      if (message.origin !== PERFETTO || message.data !== "PONG") return;
      other.postMessage({ perfetto: { buffer, title } }, PERFETTO);
      over(resolve);
    };
    addEventListener("message", heard);
  });
  said("opened in Perfetto");
}
