// @ts-check
// Elements of the page: finding, creating and changing them.

/**
 * The element of an id.
 * @template {HTMLElement} [T=HTMLElement]
 * @param {string} id
 * @param {{ new (): T }} [type] what it is, where more than an HTMLElement is needed
 * @returns {T}
 */
export function byId(id, type) {
  const found = document.getElementById(id);
  if (!(found instanceof (type ?? HTMLElement))) throw new Error(`the page has no ${type?.name ?? "element"} with the id ${id}`);
  return /** @type {T} */ (found);
}

/**
 * The first element below another one that a selector matches.
 * @template {Element} [T=HTMLElement]
 * @param {ParentNode} parent
 * @param {string} selector
 * @param {{ new (): T }} [type]
 * @returns {T}
 */
export function find(parent, selector, type) {
  const found = parent.querySelector(selector);
  if (!(found instanceof (type ?? HTMLElement))) throw new Error(`the page has no ${type?.name ?? "element"} that matches ${selector}`);
  return /** @type {T} */ (/** @type {unknown} */ (found));
}

/**
 * A new element with properties, or attributes, and children. Text is only ever text: names come from the network.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {Record<string, unknown>} [properties]
 * @param {...(Node | string)} children
 * @returns {HTMLElementTagNameMap[T]}
 */
export function element(tag, properties = {}, ...children) {
  const created = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in created) Object.assign(created, { [name]: value });
    else created.setAttribute(name, String(value));
  }
  created.append(...children);
  return created;
}

/**
 * Changes a text only if it differs, so that screen readers announce what changed and nothing else.
 * @param {Element} node
 * @param {string} text
 */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/**
 * Gives an element these children. Those that are in their place are not touched, so the focus stays where it is.
 * @param {Element} parent
 * @param {Element[]} nodes
 */
export function updateChildren(parent, nodes) {
  const wanted = new Set(nodes);
  for (const node of [...parent.children]) if (!wanted.has(node)) node.remove();
  let at = parent.firstChild;
  for (const node of nodes) {
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
  }
}

/**
 * A button. An error that its action throws is shown in another element.
 * @param {string} text
 * @param {string} label its name for screen readers
 * @param {() => Promise<unknown>} action
 * @param {string} status id of the element that shows errors
 */
export function button(text, label, action, status) {
  const created = element("button", { type: "button", ariaLabel: label }, text);
  created.addEventListener("click", () => action().catch((/** @type {Error} */ error) => setText(byId(status), error.message)));
  return created;
}
