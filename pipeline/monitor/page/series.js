// Arithmetic on curves, independent of the page: smoothing, means over seeds, joined tables, ranges, CSV.

/** @typedef {{xs: number[], values: (number|null)[]}} Line */

const MOST_ROWS = 3000; // maximum rows in a table of several lines; no screen has more pixels

/** Exponential moving average, corrected for its start. @param {(number|null)[]} values @param {number} weight */
export function smoothed(values, weight) {
  let sum = 0, norm = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = sum * weight + (1 - weight) * value;
    norm = norm * weight + (1 - weight);
    return sum / norm;
  });
}

/** A curve's values at other x values, by linear interpolation; these and `xs` both increase. @param {Line} line @param {number[]} places */
export function between(line, places) {
  const { xs, values } = line;
  let at = 0;
  return places.map((place) => {
    while (at + 1 < xs.length && xs[at + 1] <= place) at++;
    const next = Math.min(at + 1, xs.length - 1), span = xs[next] - xs[at];
    const share = span > 0 ? Math.min(1, Math.max(0, (place - xs[at]) / span)) : 0;
    return values[at] + share * (values[next] - values[at]);
  });
}

/** Mean and sample standard deviation of several lines, over their common range. @param {Line[]} lines */
export function meanOf(lines) {
  const first = Math.max(...lines.map((line) => line.xs[0])), last = Math.min(...lines.map((line) => line.xs.at(-1)));
  const xs = placesOf(lines)[0].filter((x) => x >= first && x <= last);
  const all = lines.map((line) => between(line, xs));
  const values = xs.map((_, at) => all.reduce((sum, each) => sum + each[at], 0) / all.length);
  const spread = xs.map((_, at) => Math.sqrt(all.reduce((sum, each) => sum + (each[at] - values[at]) ** 2, 0) / (all.length - 1)));
  return { xs, values, low: values.map((value, at) => value - spread[at]), high: values.map((value, at) => value + spread[at]) };
}

/** The x values of all lines, in order, and a function that maps each x to one of these; if there are very many, they form a grid. @param {Line[]} lines @returns {[number[], (x: number) => number]} */
function placesOf(lines) {
  const first = lines[0]?.xs ?? [], same = lines.every(({ xs }) => xs.length === first.length && xs.every((x, at) => x === first[at]));
  if (same) return [first, (x) => x];
  if (lines.reduce((sum, { xs }) => sum + xs.length, 0) <= 2 * MOST_ROWS) return [[...new Set(lines.flatMap(({ xs }) => xs))].sort((a, b) => a - b), (x) => x];
  const low = Math.min(...lines.map(({ xs }) => xs[0])), width = (Math.max(...lines.map(({ xs }) => xs.at(-1))) - low) / MOST_ROWS;
  return [Array.from({ length: MOST_ROWS + 1 }, (_, row) => low + row * width), (x) => low + Math.round((x - low) / width) * width];
}

/**
 * Several lines as one table: their x values, and one column for each named column of each line, with null where the line has no point.
 * @param {any[]} lines
 * @param {string[]} columns Such as "values"; columns that a line does not have are omitted.
 * @returns {(number|null)[][]}
 */
export function joined(lines, columns) {
  const there = lines.flatMap((line) => columns.filter((name) => line[name]).map((name) => [line, line[name]]));
  const [xs, placed] = placesOf(lines);
  if (xs === lines[0]?.xs || !lines.length) return [xs, ...there.map(([, values]) => values)];
  const rows = new Map(lines.map((line) => {
    let row = 0;
    return [line, line.xs.map((x) => {
      const place = placed(x);
      while (row + 1 < xs.length && xs[row + 1] <= place) row++;
      return row;
    })];
  }));
  return [xs, ...there.map(([line, values]) => {
    const column = new Array(xs.length).fill(null);
    rows.get(line).forEach((row, at) => { column[row] = values[at]; });
    return column;
  })];
}

/** The range of the middle 96 % of the values, so that a few outliers do not flatten the rest; undefined for fewer than 20 values. @param {(number|null)[][]} columns @param {number} from @param {number} to */
export function mostOf(columns, from, to) {
  const values = Float64Array.from(columns.flatMap((column) => column.slice(from, to + 1).filter((value) => value !== null))).sort();
  if (values.length < 20) return undefined;
  const low = values[Math.floor(0.02 * values.length)], high = values[Math.ceil(0.98 * values.length) - 1];
  const margin = 0.1 * (high - low) || Math.abs(high) * 0.1 || 1;
  return [low - margin, high + margin];
}

/** The newest value at or before a row; null outside the line. @param {(number|null)[]} column @param {number} row */
export function valueAt(column, row) {
  for (let at = row; at >= 0; at--) {
    if (column[at] !== null && column[at] !== undefined) return at === row || column.slice(row).some((value) => value !== null) ? column[at] : null;
  }
  return null;
}

/** @param {string[]} heads @param {(number|null)[][]} columns */
export function csv(heads, columns) {
  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const rows = columns[0].map((_, at) => columns.map((column) => column[at] ?? "").join(","));
  return `${[heads.map(quoted).join(","), ...rows].join("\n")}\n`;
}

/** A name for several runs: the common prefix of their names, and their number. @param {string[]} names */
export function commonName(names) {
  let end = 0;
  while (names.every((name) => end < name.length && name[end] === names[0][end])) end++;
  return `${names[0].slice(0, end).replace(/[-_. ]+$/, "") || names[0]} × ${names.length}`;
}
