// Helpers that create elements and format numbers.

/**
 * Make an element.
 * @param {string} tag "div", "td.n" (with classes), or "svg:path".
 * @param {Record<string, any>} [attributes] Attributes; functions are listeners.
 * @param {...(Node|string|number|null|undefined)} children
 * @returns {any}
 */
export function h(tag, attributes = {}, ...children) {
  const [name, ...classes] = tag.replace("svg:", "").split(".");
  const element = tag.startsWith("svg:")
    ? document.createElementNS("http://www.w3.org/2000/svg", name)
    : document.createElement(name);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(key, value);
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined).map((child) => (child instanceof Node ? child : String(child))));
  return element;
}

/** @param {Element} parent @param {...(Node|string|null)} children */
export function fill(parent, ...children) {
  parent.replaceChildren(...children.filter((child) => child !== null));
}

/** Replace the middle of a long text with an ellipsis: many names differ only at their ends. @param {string} text @param {number} most */
export function clip(text, most) {
  const letters = [...text], end = Math.floor((most - 1) / 2);
  return letters.length > most ? `${letters.slice(0, most - 1 - end).join("")}…${letters.slice(-end).join("")}` : text;
}

/** Format a number in few characters. @param {number|null|undefined} value @param {number} [digits] */
export function short(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return value.toExponential(digits - 1).replace(/\.?0*e\+/, "e");
  if (size >= 1e6) return `${trim((value / 1e6).toFixed(digits - 1))}M`;
  if (size >= 1e4) return `${trim((value / 1e3).toFixed(digits - 2))}k`;
  if (size !== 0 && size < 1e-3) return value.toExponential(digits - 2);
  return trim(size >= 100 ? value.toFixed(digits - 2) : value.toPrecision(digits));
}

/** Labels for an axis's ticks, with enough digits to distinguish them; empty for ticks that a logarithmic axis omits. @param {(number|null)[]} ticks */
export function labels(ticks) {
  const there = new Set(ticks.filter((tick) => tick !== null));
  let texts = [];
  for (let digits = 3; digits < 8 && new Set(texts).size < there.size; digits++) texts = [...there].map((tick) => short(tick, digits));
  const text = new Map([...there].map((tick, at) => [tick, texts[at]]));
  return ticks.map((tick) => text.get(tick) ?? "");
}

/** Labels for durations, all in the longest one's unit. @param {number[]} ticks In seconds. */
export function spans(ticks) {
  const most = Math.max(...ticks), [unit, name] = most >= 2 * 86400 ? [86400, "d"] : most >= 2 * 3600 ? [3600, "h"] : most >= 120 ? [60, "min"] : [1, "s"];
  return ticks.map((tick) => `${short(tick / unit)} ${name}`);
}

/** The width in pixels of a vertical axis with these labels. @param {string[] | null} values */
export const widthOf = (values) => Math.max(44, 12 + 6 * Math.max(0, ...(values ?? []).map((value) => value.length)));

/** @param {string} text */
const trim = (text) => (text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text);

/** @param {number|null|undefined} value */
export const whole = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en"));

/** @param {number|null|undefined} share */
export const percent = (share) => (share === null || share === undefined ? "–" : `${Math.round(100 * share)} %`);

/** @param {number|null|undefined} seconds */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const s = Math.round(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${String(s % 60).padStart(2, "0")} s`;
  return `${Math.floor(s / 3600)} h ${String(Math.floor((s % 3600) / 60)).padStart(2, "0")} min`;
}

/** @param {number} bytes */
export const memory = (bytes) => (bytes >= 2 ** 30 ? `${(bytes / 2 ** 30).toFixed(2)} GiB` : `${(bytes / 2 ** 20).toFixed(0)} MiB`);

/** A bar, filled to the given share. @param {number} share @param {string} [level] */
export function bar(share, level = "") {
  const inner = h("i");
  inner.style.width = `${Math.round(100 * Math.min(1, Math.max(0, share)))}%`;
  return h(`div.bar${level && `.${level}`}`, {}, inner);
}

/** A colour from the theme. @param {string} name */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
