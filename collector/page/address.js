// @ts-check
// What the page shows, as parameters of its address: so that it can be kept, reloaded and sent to a colleague.
//
// job, range (`all`), t (zoom of the chart: from-to in Unix seconds), filter, sort (a column, with `-` for the other direction),
// ranks (ids of the chosen ones), map (zoom of the heat map: positions of ranks, and steps) and value (`whole`).

const PAUSE = 250; // ms in which changes are collected: browsers limit how often a page may change its address

/** @type {Record<string, string | null>} */
let pending = {};
/** @type {number | undefined} */
let timer;

/**
 * A parameter of the address; null if it has none.
 * @param {string} name
 */
export const fromAddress = (name) => new URLSearchParams(location.search).get(name);

/**
 * Changes parameters in place; null or an empty text removes one.
 * @param {Record<string, string | null>} changes
 */
export function toAddress(changes) {
  Object.assign(pending, changes);
  clearTimeout(timer);
  timer = setTimeout(write, PAUSE);
}

/**
 * Changes parameters as a step that the browser's button goes back from.
 * @param {Record<string, string | null>} changes
 */
export function pushAddress(changes) {
  write();
  history.pushState(null, "", changed(changes));
}

/**
 * Calls a function when the browser has gone to another address of the page.
 * @param {() => void} action
 */
export function onAddress(action) {
  addEventListener("popstate", () => {
    clearTimeout(timer);
    pending = {};
    action();
  });
}

function write() {
  clearTimeout(timer);
  const address = changed(pending);
  pending = {};
  if (address !== location.pathname + location.search) history.replaceState(null, "", address);
}

/** @param {Record<string, string | null>} changes */
function changed(changes) {
  const parameters = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value) parameters.set(name, value);
    else parameters.delete(name);
  }
  const query = parameters.toString();
  return query ? `${location.pathname}?${query}` : location.pathname;
}
