// Curves: one small chart for each statistic, drawn when it comes into view.
import { clip, colour, fill, h, labels, short, widthOf } from "./dom.js";

const ORDER = ["Environment", "Evaluation", "Self-play", "Losses", "Policy", "action", "Pipeline", "Steps per Second", "Queue Depth", "Producer Wait", "Consumer Wait"];
const MOST = 3000; // points of a curve that are kept here before all is read again, downsampled

/** @typedef {{steps: number[], times: number[], values: number[]}} Columns */

/** The curves of one run. */
export class Curves {
  /** @param {HTMLElement} element @param {HTMLElement} tools @param {() => void} stale Called when all has to be read again. */
  constructor(element, tools, stale) {
    this.element = element;
    this.stale = stale;
    /** @type {Record<string, Record<string, Columns>>} */
    this.all = {};
    this.category = "";
    this.x = "steps";
    this.smooth = 0;
    this.filter = "";
    /** @type {Map<string, Chart>} */
    this.charts = new Map();
    this.seen = new IntersectionObserver((entries) => {
      for (const entry of entries) this.charts.get(entry.target.getAttribute("data-statistic") ?? "")?.show(entry.isIntersecting);
    }, { rootMargin: "150px" });
    this.tabs = h("div.tabs", { role: "group", "aria-label": "Behaviour" });
    this.axis = h("div.tabs", { role: "group", "aria-label": "Horizontal axis" }, ...["steps", "times"].map((x) => h("button", { type: "button", "aria-pressed": String(x === this.x), click: () => this.setAxis(x), "data-axis": x }, x === "steps" ? "step" : "time")));
    const smooth = h("input", { type: "range", min: 0, max: 0.97, step: 0.01, value: 0, "aria-label": "Smoothing" });
    smooth.addEventListener("input", () => { this.smooth = Number(smooth.value); this.redraw(); });
    const filter = h("input", { type: "search", placeholder: "filter", "aria-label": "Filter curves" });
    filter.addEventListener("input", () => { this.filter = filter.value.toLowerCase(); this.build(); });
    fill(tools, this.tabs, this.axis, h("label", {}, "smooth", smooth), filter);
  }

  /** @param {Record<string, Record<string, Columns>>} all */
  replace(all) {
    const before = this.names();
    this.all = all;
    if (!all[this.category]) this.category = Object.keys(all).find((name) => name !== "Pipeline") ?? Object.keys(all)[0] ?? "";
    if (before === this.names() && this.charts.size) this.redraw();
    else this.build();
  }

  /** Add new points. @param {Record<string, Record<string, number[][]>>} points */
  add(points) {
    let isNew = false;
    for (const [category, named] of Object.entries(points)) {
      for (const [name, list] of Object.entries(named)) {
        this.all[category] ??= {};
        isNew ||= !this.all[category][name];
        const columns = (this.all[category][name] ??= { steps: [], times: [], values: [] });
        for (const [step, time, value] of list) {
          if (step <= (columns.steps.at(-1) ?? -1) && time <= (columns.times.at(-1) ?? -1)) continue; // read with all others
          columns.steps.push(step);
          columns.times.push(time);
          columns.values.push(value);
        }
        if (columns.steps.length > MOST) return this.stale();
      }
    }
    if (!this.category || isNew) this.replace(this.all), this.build();
    else if (points[this.category]) this.redraw();
  }

  names() {
    return JSON.stringify(Object.entries(this.all).map(([category, named]) => [category, Object.keys(named).length]));
  }

  /** @param {string} x */
  setAxis(x) {
    this.x = x;
    for (const button of this.axis.children) button.setAttribute("aria-pressed", String(button.getAttribute("data-axis") === x));
    this.build();
  }

  /** Lay the charts out anew. */
  build() {
    this.seen.disconnect();
    for (const chart of this.charts.values()) chart.show(false);
    this.charts.clear();
    fill(this.tabs, ...Object.keys(this.all).map((category) => h("button", { type: "button", "aria-pressed": String(category === this.category), title: category, click: () => { this.category = category; this.build(); } }, clip(category, 32))));
    const named = this.all[this.category] ?? {};
    const names = Object.keys(named).filter((name) => name.toLowerCase().includes(this.filter));
    const rank = (name) => (ORDER.indexOf(groupOf(name)) + ORDER.length + 1) % (ORDER.length + 1);
    names.sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
    fill(this.element, h("div.charts", {}, ...names.map((name) => this.chart(name).element)));
    if (!names.length) fill(this.element, h("p.soft", {}, this.filter ? "No curve has such a name." : "The first summary has yet to come."));
    for (const chart of this.charts.values()) this.seen.observe(chart.element);
  }

  /** @param {string} name */
  chart(name) {
    const chart = new Chart(name, () => this.columns(name), this);
    this.charts.set(name, chart);
    return chart;
  }

  /** What a chart draws. @param {string} name @returns {number[][]} */
  columns(name) {
    const { steps, times, values } = this.all[this.category]?.[name] ?? { steps: [], times: [], values: [] };
    const xs = this.x === "steps" ? steps : times;
    return this.smooth ? [xs, values, smoothed(values, this.smooth)] : [xs, values];
  }

  redraw() {
    for (const chart of this.charts.values()) chart.draw();
  }

  /** Forget what was drawn in other colours. */
  recolour() {
    this.build();
  }
}

/** @param {string} name Such as "Losses/Policy Loss". */
const groupOf = (name) => (name.includes("/") ? name.slice(0, name.indexOf("/")) : "");

/** One statistic. */
class Chart {
  /** @param {string} name @param {() => number[][]} columns @param {Curves} owner */
  constructor(name, columns, owner) {
    this.columns = columns;
    this.owner = owner;
    this.visible = false;
    this.lines = 0;
    this.value = h("b");
    this.area = h("div");
    this.element = h("div.chart", { "data-statistic": name }, h("div.name", { title: name }, h("span", {}, h("i", {}, `${groupOf(name)} `), name.slice(name.indexOf("/") + 1)), this.value), this.area);
  }

  /** @param {boolean} visible */
  show(visible) {
    this.visible = visible;
    if (visible) return this.draw();
    this.plot?.destroy();
    this.plot = undefined;
    fill(this.area);
  }

  draw() {
    if (!this.visible) return;
    const data = this.columns();
    this.value.textContent = short(data.at(-1)?.at(-1));
    const width = this.area.clientWidth;
    if (this.plot && (this.lines !== data.length || this.plot.width !== width)) {
      this.plot.destroy();
      this.plot = undefined;
    }
    this.lines = data.length;
    if (this.plot) this.plot.setData(data);
    else this.plot = new uPlot(this.options(width, data.length > 2), data, this.area);
  }

  /** @param {number} width @param {boolean} smooth */
  options(width, smooth) {
    const time = this.owner.x === "times", soft = colour("soft"), grid = { stroke: colour("grid"), width: 1 };
    const axis = { stroke: soft, grid, ticks: { show: false }, font: "10px system-ui, sans-serif" };
    const points = { show: (plot) => plot.data[0].length < 2 };
    const line = { stroke: colour("curve"), width: 1.5, points, spanGaps: true };
    return {
      width, height: 136, legend: { show: false }, padding: [6, 16, 0, 0],
      scales: { x: { time } },
      cursor: { y: false, drag: { x: true, y: false }, sync: { key: `curves-${this.owner.x}` }, points: { size: 5 } },
      series: [{}, smooth ? { ...line, stroke: colour("curve-raw"), width: 1 } : line, ...(smooth ? [line] : [])],
      axes: [
        { ...axis, size: 26, gap: 6, space: 60, ...(time ? {} : { values: (_, ticks) => labels(ticks) }) },
        { ...axis, size: (_, values) => widthOf(values), gap: 3, space: 26, values: (_, ticks) => labels(ticks) },
      ],
      hooks: { setCursor: [(plot) => {
        const at = plot.cursor.idx, last = plot.data.at(-1);
        this.value.textContent = short(at === null || at === undefined ? last.at(-1) : last[at], 4);
      }] },
    };
  }
}

/** Exponential moving average, corrected for its start. @param {number[]} values @param {number} weight */
function smoothed(values, weight) {
  let sum = 0, norm = 0;
  return values.map((value) => {
    sum = sum * weight + (1 - weight) * value;
    norm = norm * weight + (1 - weight);
    return sum / norm;
  });
}
