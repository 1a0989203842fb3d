// One statistic as a chart: the lines of several runs or behaviours, with marks, small on the page or large in a dialog.
import { colour, fill, h, labels, short, spans, widthOf } from "./dom.js";
import { csv, joined, mostOf, smoothed, valueAt } from "./series.js";

const NEAR = 5; // maximum pixels between the cursor and a mark whose meaning is shown
const UNITS_S = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 4 * 3600, 8 * 3600, 86400, 2 * 86400, 5 * 86400, 10 * 86400, 50 * 86400];
export const AXES = { steps: "step", times: "time", updates: "updates" };

/** @param {string} name Such as "Losses/Policy Loss". */
export const groupOf = (name) => (name.includes("/") ? name.slice(0, name.indexOf("/")) : "");

/** A dot in a line's colour. @param {any} line */
export const spot = ({ ink, dash }) => {
  const element = h("i.spot");
  element.style.background = dash ? `repeating-linear-gradient(90deg, ${ink} 0 ${dash[0]}px, transparent ${dash[0]}px ${dash[0] + dash[1]}px)` : ink;
  return element;
};

/** @param {string} file @param {Blob} content */
export function save(file, content) {
  const link = h("a", { href: URL.createObjectURL(content), download: file });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** A chart and its element. */
export class Chart {
  /** @param {string} name @param {any} owner Supplies the lines, and how to draw them. @param {boolean} [large] */
  constructor(name, owner, large = false) {
    this.name = name;
    this.owner = owner;
    this.large = large;
    this.visible = large;
    this.stale = true;
    this.key = "";
    this.lines = /** @type {any[]} */ ([]);
    this.table = /** @type {any[]} */ ([[]]);
    this.value = h("b");
    this.values = h("div.values");
    this.near = h("div.near", { hidden: true });
    this.area = h("div.area");
    const title = h("button.quiet", { type: "button", title: `${name}: enlarge and explain`, click: () => owner.enlarge(name) }, h("i", {}, `${groupOf(name)} `), name.slice(name.indexOf("/") + 1));
    this.element = h(`div.chart${large ? ".large" : ""}`, { "data-statistic": name }, large ? null : h("div.name", {}, title, this.value), this.values, this.area);
  }

  /** @param {boolean} visible */
  show(visible) {
    this.visible = visible;
    if (visible && this.stale) this.draw();
  }

  /** Draw the current lines: into the existing chart if only numbers have changed. */
  draw() {
    const { x, log, clip, smooth } = this.owner, width = this.area.clientWidth;
    if (!width) return;
    this.stale = false;
    this.lines = this.owner.lines(this.name);
    for (const line of this.lines) if (smooth) for (const each of line.low ? ["values", "low", "high"] : ["values"]) line[each === "values" ? "smooth" : each] = smoothed(line[each], smooth);
    this.table = joined(this.lines, ["values", "smooth", "low", "high"]);
    const positive = log && this.table.slice(1).every((column) => column.every((value) => value === null || value > 0));
    const key = JSON.stringify([x, width, log, positive, clip, smooth > 0, this.lines.map((line) => [line.label, line.ink, Boolean(line.low)])]);
    if (key !== this.key) this.make(width, positive);
    else this.renew();
    this.key = key;
    this.tell(null);
  }

  /** @param {number} width @param {boolean} positive */
  make(width, positive) {
    this.plot?.destroy();
    fill(this.area, this.near);
    this.plot = new uPlot(this.options(width, positive), this.table, this.area);
  }

  /** Show new numbers, and keep the user's zoom. */
  renew() {
    const { min, max } = this.plot.scales.x, before = this.plot.data[0];
    const zoomed = before.length > 1 && (min > before[0] || max < before.at(-1));
    this.plot.batch(() => {
      this.plot.setData(this.table, !zoomed);
      if (zoomed) this.plot.setScale("x", { min, max });
    });
  }

  /** Show the values at a row, or the newest values. @param {number|null|undefined} row */
  tell(row) {
    const columns = this.lines.map((line) => this.table[this.columnOf(line)]), none = row === null || row === undefined;
    const values = columns.map((column) => short(none ? column.findLast((value) => value !== null) : valueAt(column, row), none ? 3 : 4));
    if (this.lines.length === 1) this.value.textContent = values[0];
    else this.value.textContent = "";
    const many = this.large || this.lines.length > 1;
    fill(this.values, ...(many ? this.lines.map((line, at) => h("span", { title: line.label }, spot(line), this.large ? `${line.label} ` : "", h("b", {}, values[at]))) : []));
  }

  /** The table column with the values shown for a line. @param {any} line */
  columnOf(line) {
    let at = 1;
    for (const each of this.lines) {
      if (each === line) return each.smooth ? at + 1 : at;
      at += 1 + (each.smooth ? 1 : 0) + (each.low ? 2 : 0);
    }
    return at;
  }

  /** @param {number} width @param {boolean} positive */
  options(width, positive) {
    const { x, log, clip } = this.owner, time = x === "times", grid = { stroke: colour("grid"), width: 1 };
    const axis = { stroke: colour("soft"), grid, ticks: { show: false }, font: `${this.large ? 11 : 10}px system-ui, sans-serif` };
    const series = /** @type {any[]} */ ([{}]), bands = [];
    for (const { ink, dash, xs, smooth, low } of this.lines) {
      const line = { stroke: ink, width: 1.5, dash, points: { show: xs.length < 2 }, spanGaps: true };
      series.push(smooth ? { ...line, stroke: `${ink}48`, width: 1 } : line, ...(smooth ? [line] : []));
      const edge = { ...line, stroke: `${ink}00`, points: { show: false } };
      if (low) bands.push({ series: [series.length + 1, series.length], fill: `${ink}2e` }), series.push(edge, edge);
    }
    const range = (plot, low, high) => {
      const most = mostOf(plot.data.slice(1), ...(plot.series[0].idxs ?? [0, Infinity]));
      if (most && low !== null) return [positive ? Math.max(low, most[0]) : most[0], most[1]];
      return positive ? uPlot.rangeLog(low ?? 1, high ?? 10, 10, true) : uPlot.rangeNum(low ?? 0, high ?? 1, 0.1, true); // on a logarithmic axis, a range from 0 would have infinitely many ticks
    };
    const y = { ...(log ? { distr: positive ? 3 : 4 } : {}), ...(clip ? { range } : {}) };
    const powers = (plot, ticks) => ticks.map((tick) => (tick >= plot.scales.y.min && tick <= plot.scales.y.max && (!tick || Number.isInteger(Number(Math.log10(Math.abs(tick)).toFixed(9)))) ? tick : null));
    return {
      width, height: this.large ? Math.max(220, Math.min(520, Math.round(innerHeight * 0.5))) : 136,
      legend: { show: false }, padding: [6, 16, 0, 0], scales: { x: { time: false }, y }, series, bands,
      cursor: { y: false, drag: { x: true, y: false }, sync: { key: `curves-${x}` }, points: { size: 5 } },
      axes: [
        { ...axis, size: 26, gap: 6, space: 60, values: (_, ticks) => (time ? spans : labels)(ticks), ...(time ? { incrs: UNITS_S } : {}) },
        { ...axis, size: (_, values) => widthOf(values), gap: 3, space: 26, values: (_, ticks) => labels(ticks), ...(log && !positive ? { filter: powers, grid: { ...grid, filter: powers } } : {}) },
      ],
      hooks: { setCursor: [(plot) => { this.tell(plot.cursor.idx); this.read(plot); }], draw: [(plot) => this.drawMarks(plot)] },
    };
  }

  /** The visible marks, each with its line's colour. */
  marks() {
    return this.owner.marked ? this.lines.flatMap((line) => line.marks.map((mark) => ({ ...mark, ink: line.ink }))) : [];
  }

  /** Draw vertical lines at changes and restarts, and a triangle for each checkpoint. @param {any} plot */
  drawMarks(plot) {
    const { ctx: pen, bbox } = plot, dot = devicePixelRatio, below = bbox.top + bbox.height;
    const inks = { set: colour("warn"), lesson: colour("good"), restart: colour("bad"), finding: colour("bad"), checkpoint: colour("pale") };
    pen.save();
    for (const { kind, x, ink } of this.marks()) {
      const at = Math.round(plot.valToPos(x, "x", true));
      if (at < bbox.left || at > bbox.left + bbox.width) continue;
      pen.strokeStyle = pen.fillStyle = this.lines.length > 1 ? ink : inks[kind] ?? inks.checkpoint;
      pen.beginPath();
      if (kind === "checkpoint") {
        for (const [dx, dy] of [[0, -5], [-3, 0], [3, 0]]) pen.lineTo(at + dx * dot, below + dy * dot);
        pen.fill();
      } else {
        pen.lineWidth = dot;
        pen.setLineDash([3 * dot, 3 * dot]);
        pen.moveTo(at, bbox.top);
        pen.lineTo(at, below);
        pen.stroke();
      }
    }
    pen.restore();
  }

  /** Show the meaning of the marks at the pointer. @param {any} plot */
  read(plot) {
    const left = plot.cursor.left, here = left >= 0 && plot.over.matches(":hover");
    const found = here ? this.marks().filter((mark) => Math.abs(plot.valToPos(mark.x, "x") - left) <= NEAR) : [];
    this.near.hidden = !found.length;
    this.near.textContent = [...new Set(found.map((mark) => mark.text))].slice(-3).join(" · ");
  }

  /** The drawn values, as a table. */
  csv() {
    const columns = ["values", "low", "high"], lines = this.owner.lines(this.name);
    const heads = lines.flatMap((line) => columns.filter((name) => line[name]).map((name) => (name === "values" ? line.label : `${line.label} ${name}`)));
    return new Blob([csv([AXES[this.owner.x], ...heads], joined(lines, columns))], { type: "text/csv" });
  }

  /** The chart as an image, with its title and a legend. @returns {Promise<Blob>} */
  png() {
    const chart = this.plot.ctx.canvas, dot = devicePixelRatio, row = 18 * dot, head = row * (this.lines.length + 1.5);
    const canvas = h("canvas", { width: chart.width, height: chart.height + head }), pen = canvas.getContext("2d");
    pen.fillStyle = colour("panel");
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.font = `600 ${13 * dot}px system-ui, sans-serif`;
    pen.fillStyle = colour("ink");
    pen.fillText(`${this.name}, by ${AXES[this.owner.x]}`, row / 2, row);
    pen.font = `${12 * dot}px system-ui, sans-serif`;
    this.lines.forEach((line, at) => {
      pen.fillStyle = line.ink;
      pen.fillRect(row / 2, row * (at + 1.6), row, 3 * dot);
      pen.fillStyle = colour("ink");
      pen.fillText(line.label, 2 * row, row * (at + 2));
    });
    pen.drawImage(chart, 0, head);
    return new Promise((done) => canvas.toBlob(done, "image/png"));
  }
}
