// The league: ratings of the snapshots, and the matrix of results.
import { colour, h, short, whole } from "./dom.js";

const WON = [33, 102, 172], LOST = [217, 95, 14];

/** @param {any} league @returns {HTMLElement} */
export function drawLeague(league) {
  const ratings = h("div", {}, h("h3", {}, `Ratings of ${league.behavior}'s snapshots (now ${whole(league.rating)})`));
  const results = h("div", {}, h("h3", {}, "Results: rows, the learner since its snapshot; columns, whom it met"));
  const element = h("div.league", {}, ratings, results);
  requestAnimationFrame(() => {
    if (league.snapshots.length > 1) drawRatings(league, ratings);
    else ratings.append(h("p.soft", {}, "There are no snapshots yet."));
    if (league.cells.length && league.columns.length) results.append(drawMatrix(league, results.clientWidth));
    else results.append(h("p.soft", {}, "No game has ended yet."));
  });
  return element;
}

function drawRatings(league, element) {
  const soft = colour("soft"), grid = { stroke: colour("grid"), width: 1 };
  const axis = { stroke: soft, grid, ticks: { show: false }, font: "10px system-ui, sans-serif", values: (_, ticks) => ticks.map((tick) => short(tick)) };
  const data = [league.snapshots.map((each) => each.step), league.snapshots.map((each) => each.rating)];
  new uPlot({ width: element.clientWidth, height: 200, legend: { show: false }, scales: { x: { time: false } }, series: [{}, { stroke: colour("curve"), width: 1.5, points: { size: 4 } }], axes: [{ ...axis, size: 22 }, { ...axis, size: 44 }] }, data, element);
}

function drawMatrix(league, width) {
  const left = 46, below = 16, columns = league.columns.length, rows = league.cells.length;
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
    if (row % every === 0) text(pen, `≥ ${league.rows[row]}`, left - 6, (row + 0.5) * cell, colour("soft"), "right");
    line.forEach((counts, column) => {
      pen.fillStyle = counts ? shade(score(counts)) : colour("faint");
      pen.fillRect(left + column * cell, row * cell, cell - 1, cell - 1);
      if (counts && cell >= 26) text(pen, String(Math.round(100 * score(counts))), left + (column + 0.5) * cell, (row + 0.5) * cell, Math.abs(score(counts) - 0.5) > 0.28 ? "#fff" : "#222", "center");
    });
  });
  league.columns.forEach((each, column) => {
    if (column % across === 0) text(pen, each.snapshot < 0 ? "new" : String(each.snapshot), left + (column + 0.5) * cell, rows * cell + below / 2, colour("soft"), "center");
  });
  canvas.addEventListener("mousemove", (event) => {
    const [column, row] = [Math.floor((event.offsetX - left) / cell), Math.floor(event.offsetY / cell)];
    const counts = league.cells[row]?.[column], met = league.columns[column];
    canvas.title = counts ? `${met.against} ${met.snapshot < 0 ? "newest" : met.snapshot}: won ${counts[0]}, drawn ${counts[1]}, lost ${counts[2]}` : "";
  });
  return canvas;
}

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
