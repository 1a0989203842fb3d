// Explanations of statistics, from the documentation's page on statistics, which is read once.

/** @type {Promise<string>|undefined} */
let page;

/** @typedef {{what: string, should: string}} Explanation */

/** @param {string} statistic @returns {Promise<Explanation|undefined>} */
export async function explain(statistic) {
  page ??= fetch("statistics.md").then((answer) => answer.text());
  return explanationIn(await page, statistic);
}

/**
 * Find a statistic in the page's tables.
 * @param {string} markdown
 * @param {string} statistic
 * @returns {Explanation|undefined} Undefined if the page does not describe the statistic.
 */
export function explanationIn(markdown, statistic) {
  let best = /** @type {any} */ (undefined), heads = /** @type {string[]} */ ([]);
  for (const line of markdown.split("\n")) {
    if (!line.startsWith("|")) { heads = []; continue; }
    const cells = line.split(/(?<!\\)\|/).slice(1, -1).map((cell) => cell.trim().replaceAll("\\|", "|"));
    if (!heads.length) heads = cells;
    if (heads[0] !== "statistic") continue;
    for (const [, name] of cells[0].matchAll(/`([^`]+)`/g)) {
      const fixed = name.replace(/<[^>]*>/g, "");
      const pattern = name.split(/<[^>]*>/).map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join(".+");
      if (!new RegExp(`^${pattern}$`).test(statistic) || fixed.length <= (best?.length ?? -1)) continue;
      const cell = (words) => cells[heads.findIndex((head) => head.startsWith(words))] ?? "";
      best = { length: fixed.length, what: cell("what it is"), should: cell("what it should do") };
    }
  }
  return best && { what: best.what, should: best.should };
}

/** Split text from the page into pieces, and mark the pieces that are code. @param {string} markdown @returns {{text: string, code: boolean}[]} */
export function pieces(markdown) {
  const plain = markdown.replace(/\[([^\]]*)\]\([^)]*\)/g, "$1").replaceAll("\\|", "|");
  return plain.split(/(`[^`]*`)/).filter(Boolean).map((part) => (part.startsWith("`") ? { text: part.slice(1, -1), code: true } : { text: part, code: false }));
}
