// Leagues: for self-play, the snapshots' ratings and a matrix of results; for several learners, a chart.
import { colour, h, labels, whole, widthOf } from "./dom.js";

const WON = [33, 102, 172], LOST = [217, 95, 14];

/** @param {any} league @returns {HTMLElement} */
export function drawLeague(league) {
  return league.parts ? drawChart(league) : drawSelfPlay(league);
}

/** The chart for a league with several learners; its parts share columns. */
function drawChart(league) {
  const parts = league.parts.map((part) => h("div", {}, h("h3", {}, part.title)));
  const descent = h("div", {}, h("h3", {}, "Who descends from whom"));
  const element = h("div", {}, h("p.soft", {}, league.heading.join(". ")), h("div.league.chart", {}, ...parts, ...(league.descent.length ? [descent] : [])));
  requestAnimationFrame(() => {
    const words = [...league.columns, ...league.parts.flatMap((part) => part.rows)], left = Math.min(130, 12 + 6 * Math.max(...words.map((each) => each.length)));
    const cell = sizeOfCell(parts[0].clientWidth, left, league.columns.length, 8);
    league.parts.forEach((part, at) => parts[at].append(drawCells({ rows: part.rows, columns: league.columns, cells: part.cells, named: part.title }, left, cell)));
    if (league.descent.length) descent.append(drawArcs(league, left, cell));
  });
  return element;
}

function drawArcs(league, left, cell) {
  const height = 70, longest = Math.max(...league.descent.map(([child, parent]) => Math.abs(child - parent)));
  const [canvas, pen] = blank(left + league.columns.length * cell, height + 6, league.descent.map(([child, parent]) => `${league.columns[child]} from ${league.columns[parent]}`).join(", "));
  pen.strokeStyle = pen.fillStyle = colour("soft");
  for (const [child, parent] of league.descent) {
    const [from, to] = [child, parent].map((column) => left + (column + 0.5) * cell);
    pen.beginPath();
    pen.ellipse((from + to) / 2, 3, Math.abs(from - to) / 2, (height * Math.abs(child - parent)) / longest, 0, 0, Math.PI);
    pen.stroke();
    pen.fillRect(from - 2, 1, 4, 4);
  }
  return canvas;
}

function drawSelfPlay(league) {
  const ratings = h("div", {}, h("h3", {}, league.rating === null ? `Ratings (ELO) of ${league.behavior}'s brains` : `Ratings (ELO) of ${league.behavior}'s snapshots`));
  const results = h("div", {}, h("h3", {}, `Results. Rows: ${league.rating === null ? "the player" : "the learner, from each snapshot to the next"}. Columns: the opponent`));
  const element = h("div.league", {}, ratings, results);
  requestAnimationFrame(() => {
    if (league.snapshots.length > 1) drawRatings(league, ratings);
    else if (league.rating !== null) ratings.append(h("p.soft", {}, "No snapshots yet."));
    for (const each of league.brains ?? []) ratings.append(h("p.soft", {}, `${each.brain} (does not learn): ${whole(each.rating)} after ${whole(each.games)} games`));
    if (league.cells.length && league.columns.length) results.append(drawMatrix(league, results.clientWidth));
    else results.append(h("p.soft", {}, "No finished games yet."));
  });
  return element;
}

function drawRatings(league, element) {
  const soft = colour("soft"), grid = { stroke: colour("grid"), width: 1 };
  const axis = { stroke: soft, grid, ticks: { show: false }, font: "10px system-ui, sans-serif", values: (_, ticks) => labels(ticks) };
  const data = [league.snapshots.map((each) => each.step), league.snapshots.map((each) => each.rating)];
  new uPlot({ width: element.clientWidth, height: 200, legend: { show: false }, scales: { x: { time: false } }, series: [{}, { stroke: colour("curve"), width: 1.5, points: { size: 4 } }], axes: [{ ...axis, size: 26, gap: 6 }, { ...axis, size: (_, values) => widthOf(values) }] }, data, element);
}

function drawMatrix(league, width) {
  const numbered = typeof league.rows[0] === "number", left = numbered ? 46 : 96, rows = league.cells.length;
  const cells = league.cells.map((line) => line.map((counts) => counts && [score(counts), String(Math.round(100 * score(counts))), `won ${counts[0]}, drawn ${counts[1]}, lost ${counts[2]}`]));
  const names = league.rows.map((row) => (numbered ? `≥ ${row}` : row));
  return drawCells({ rows: names, columns: league.columns.map(met), cells, named: "Result matrix" }, left, sizeOfCell(width, left, league.columns.length, rows));
}

const sizeOfCell = (width, left, columns, rows) => Math.max(6, Math.min(34, Math.floor((width - left) / columns), Math.floor(320 / rows)));

/** A canvas of this size, sharp at every pixel density, and its drawing context. */
function blank(width, height, named) {
  const ratio = window.devicePixelRatio || 1, canvas = h("canvas", { width: width * ratio, height: height * ratio, role: "img", "aria-label": named });
  canvas.style.width = `${width}px`;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.font = "10px system-ui, sans-serif";
  pen.textBaseline = "middle";
  return [canvas, pen];
}

/** A matrix: a cell is null, or its colour between 0 (lost) and 1 (won), its text, and its details. */
function drawCells({ rows, columns, cells, named }, left, cell) {
  const below = 16, [canvas, pen] = blank(left + columns.length * cell, cells.length * cell + below, named);
  const every = Math.max(1, Math.ceil(13 / cell)), across = Math.max(1, Math.ceil(26 / cell));
  cells.forEach((line, row) => {
    if (row % every === 0) text(pen, clipped(rows[row], left - 6), left - 6, (row + 0.5) * cell, colour("soft"), "right");
    line.forEach((each, column) => {
      pen.fillStyle = each ? shade(each[0]) : colour("faint");
      pen.fillRect(left + column * cell, row * cell, cell - 1, cell - 1);
      if (each && cell >= Math.max(26, 6.5 * each[1].length)) text(pen, each[1], left + (column + 0.5) * cell, (row + 0.5) * cell, Math.abs(each[0] - 0.5) > 0.28 ? "#fff" : "#222", "center");
    });
  });
  columns.forEach((each, column) => {
    if (column % across === 0) text(pen, clipped(each, across * cell), left + (column + 0.5) * cell, cells.length * cell + below / 2, colour("soft"), "center");
  });
  canvas.addEventListener("mousemove", (event) => {
    const [column, row] = [Math.floor((event.offsetX - left) / cell), Math.floor(event.offsetY / cell)], each = cells[row]?.[column];
    canvas.title = each ? `${rows[row]} and ${columns[column]}: ${each[1]}, ${each[2]}` : "";
  });
  return canvas;
}

/** A column's label: a snapshot's number, or the name of a brain that does not learn. */
const met = (each) => each.brain ?? (each.snapshot < 0 ? "new" : String(each.snapshot));

const clipped = (words, width) => (words.length * 6 <= width ? words : `${words.slice(0, Math.max(1, Math.floor(width / 6) - 1))}…`);

const score = ([won, drawn, lost]) => (won + drawn / 2) / (won + drawn + lost);

function shade(share) {
  const [end, far] = share > 0.5 ? [WON, 2 * share - 1] : [LOST, 1 - 2 * share];
  return `rgb(${end.map((part) => Math.round(247 + far * (part - 247))).join(",")})`;
}

function text(pen, words, x, y, ink, align) {
  pen.fillStyle = ink;
  pen.textAlign = align;
  pen.fillText(words, x, y);
}
