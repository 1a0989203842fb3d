// The league: ratings of the snapshots, and the matrix of results.
import { colour, h, labels, whole, widthOf } from "./dom.js";

const WON = [33, 102, 172], LOST = [217, 95, 14];

/** @param {any} league @returns {HTMLElement} */
export function drawLeague(league) {
  const ratings = h("div", {}, h("h3", {}, league.rating === null ? `Ratings (ELO) of ${league.behavior}'s brains` : `Ratings (ELO) of ${league.behavior}'s snapshots`));
  const results = h("div", {}, h("h3", {}, `Results: rows, ${league.rating === null ? "who played" : "the learner since its snapshot"}; columns, whom it met`));
  const element = h("div.league", {}, ratings, results);
  requestAnimationFrame(() => {
    if (league.snapshots.length > 1) drawRatings(league, ratings);
    else if (league.rating !== null) ratings.append(h("p.soft", {}, "There are no snapshots yet."));
    for (const each of league.brains ?? []) ratings.append(h("p.soft", {}, `${each.brain}, which does not learn: ${whole(each.rating)} after ${whole(each.games)} games`));
    if (league.cells.length && league.columns.length) results.append(drawMatrix(league, results.clientWidth));
    else results.append(h("p.soft", {}, "No game has ended yet."));
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
  const left = typeof league.rows[0] === "number" ? 46 : 96, below = 16, columns = league.columns.length, rows = league.cells.length;
  const cell = Math.max(6, Math.min(34, Math.floor((width - left) / columns), Math.floor(320 / rows)));
  const size = { width: left + columns * cell, height: rows * cell + below }, ratio = window.devicePixelRatio || 1;
  const canvas = h("canvas", { width: size.width * ratio, height: size.height * ratio, role: "img", "aria-label": "Matrix of results" });
  canvas.style.width = `${size.width}px`;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.font = "10px system-ui, sans-serif";
  pen.textBaseline = "middle";
  const every = Math.max(1, Math.ceil(13 / cell)), across = Math.max(1, Math.ceil(26 / cell));
  league.cells.forEach((line, row) => {
    if (row % every === 0) text(pen, typeof league.rows[row] === "number" ? `≥ ${league.rows[row]}` : clipped(league.rows[row], left - 6), left - 6, (row + 0.5) * cell, colour("soft"), "right");
    line.forEach((counts, column) => {
      pen.fillStyle = counts ? shade(score(counts)) : colour("faint");
      pen.fillRect(left + column * cell, row * cell, cell - 1, cell - 1);
      if (counts && cell >= 26) text(pen, String(Math.round(100 * score(counts))), left + (column + 0.5) * cell, (row + 0.5) * cell, Math.abs(score(counts) - 0.5) > 0.28 ? "#fff" : "#222", "center");
    });
  });
  league.columns.forEach((each, column) => {
    if (column % across === 0) text(pen, clipped(met(each), across * cell), left + (column + 0.5) * cell, rows * cell + below / 2, colour("soft"), "center");
  });
  canvas.addEventListener("mousemove", (event) => {
    const [column, row] = [Math.floor((event.offsetX - left) / cell), Math.floor(event.offsetY / cell)];
    const counts = league.cells[row]?.[column], each = league.columns[column];
    canvas.title = counts ? `${each.against} ${each.brain ?? (each.snapshot < 0 ? "newest" : each.snapshot)}: won ${counts[0]}, drawn ${counts[1]}, lost ${counts[2]}` : "";
  });
  return canvas;
}

/** What a column is called: the number of a snapshot, or the name of a brain that does not learn. */
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
