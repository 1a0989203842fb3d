// Curves: a chart for each statistic, with the lines of all selected runs and behaviours.
import { ask } from "./api.js";
import { AXES, Chart, groupOf, save, spot } from "./chart.js";
import { clip, colour, fill, h } from "./dom.js";
import { explain, pieces } from "./explain.js";
import { between, commonName, meanOf } from "./series.js";

const ORDER = ["Environment", "Evaluation", "Self-play", "League", "Losses", "Policy", "action", "Pipeline", "Steps per Second", "Queue Depth", "Producer Wait", "Consumer Wait"];
const MOST = 3000; // points of a curve; beyond this, the page rereads the curves, downsampled
const INKS = 10, DASH = [6, 3], OUT_OF_VIEW_MS = 10000, TOGETHER_MS = 50;
const PIPELINE = "Pipeline", UPDATES = "Pipeline/Updates", ALL = "\0all";
const dashOf = (/** @type {number} */ behavior) => (behavior ? [2 + 2 * behavior, 2] : undefined); // in charts of several runs
const idle = window.requestIdleCallback ?? ((/** @type {any} */ work) => setTimeout(() => work({ timeRemaining: () => 0 }), 30));

/** @typedef {{steps: number[], times: number[], values: number[]}} Columns */

/** The curves of some runs. */
export class Curves {
  /** @param {{id: string, name: string, group: number}[]} runs */
  constructor(runs) {
    this.runs = runs.map((run) => ({ ...run, all: /** @type {Record<string, Record<string, Columns>>} */ ({}), marks: /** @type {Record<string, any[]>} */ ({}), revision: -1 }));
    this.category = this.filter = this.laid = "";
    this.x = "steps";
    this.smooth = 0;
    this.log = this.clip = false;
    this.marked = true;
    this.mean = new Set(runs.map((run) => run.group)).size < runs.length;
    this.hidden = new Set();
    /** @type {Map<string, Chart>} */
    this.charts = new Map();
    this.seen = new IntersectionObserver((entries) => {
      for (const entry of entries) this.charts.get(entry.target.getAttribute("data-statistic") ?? "")?.show(entry.isIntersecting);
    }, { rootMargin: "150px" });
    this.tabs = h("div.tabs", { role: "group", "aria-label": "Behaviour" });
    this.axis = h("div.tabs", { role: "group", "aria-label": "Horizontal axis" });
    const smooth = h("input", { type: "range", min: 0, max: 0.97, step: 0.01, value: 0, "aria-label": "Smoothing" });
    smooth.addEventListener("input", () => { this.smooth = Number(smooth.value); this.redraw(); });
    const filter = h("input", { type: "search", placeholder: "filter", "aria-label": "Filter curves" });
    filter.addEventListener("input", () => { this.filter = filter.value.toLowerCase(); this.build(); });
    const options = h("div.tabs", { role: "group", "aria-label": "Display options" },
      this.mean ? this.option("mean", "mean of seeds", "Draw runs that differ only in their seeds as one line: their mean and standard deviation") : null,
      this.option("log", "log", "Logarithmic vertical axis; symmetric about 0 if there are values of 0 or less"),
      this.option("clip", "clip", "Leave out the farthest 2 % of the values at each end"),
      this.option("marked", "marks", "Mark changed hyperparameters, new lessons, restarts, and checkpoints (triangles)"));
    this.legend = h("div.legend");
    this.body = h("div.body");
    this.section = h("section", { "data-section": "curves" }, h("h2", {}, "Curves", h("div.tools", {}, this.tabs, this.axis, options, h("label", {}, "smoothing", smooth), filter)), this.legend, this.body);
    this.dialog = h("dialog.chart-dialog", { "aria-label": "Statistic", close: () => { this.large?.plot?.destroy(); this.large = undefined; } });
    this.section.append(this.dialog);
  }

  /** A switch. @param {"mean"|"log"|"clip"|"marked"} key @param {string} words @param {string} title */
  option(key, words, title) {
    const button = h("button", { type: "button", title, "aria-pressed": String(this[key]), "data-option": key, click: () => {
      this[key] = !this[key];
      button.setAttribute("aria-pressed", String(this[key]));
      this.build();
    } }, words);
    return button;
  }

  /** Read a run's curves; curves that arrive together are drawn together. @param {string} id */
  async read(id) {
    const { revision, curves, marks } = await ask(`runs/${id}/curves`);
    Object.assign(this.run(id), { revision, all: curves, marks });
    this.soon ??= setTimeout(() => { this.soon = undefined; this.renew(); }, TOGETHER_MS);
  }

  /** @param {string} id @returns {any} */
  run(id) {
    return this.runs.find((run) => run.id === id);
  }

  /** Add new points and marks. @param {string} id @param {{points: Record<string, Record<string, number[][]>>, marks: [string, any][]}} event */
  add(id, { points, marks }) {
    const run = this.run(id);
    for (const [category, mark] of marks) (run.marks[category] ??= []).push(mark);
    for (const [category, named] of Object.entries(points)) {
      for (const [name, list] of Object.entries(named)) {
        const columns = ((run.all[category] ??= {})[name] ??= { steps: [], times: [], values: [] });
        for (const [step, time, value] of list) {
          if (step <= (columns.steps.at(-1) ?? -1) && time <= (columns.times.at(-1) ?? -1)) continue; // an earlier full read contains this point
          columns.steps.push(step);
          columns.times.push(time);
          columns.values.push(value);
        }
        if (columns.steps.length > MOST) return void this.read(id).catch(() => {}); // the next points try again
      }
    }
    if (marks.length || Object.keys(points).length) this.renew(OUT_OF_VIEW_MS);
  }

  /** All behaviours, and the pipeline as another category. */
  categories() {
    const all = [...new Set(this.runs.flatMap((run) => Object.keys(run.all)))];
    return [...all.filter((category) => category !== PIPELINE), ...all.filter((category) => category === PIPELINE)];
  }

  /** The selected categories. */
  chosen() {
    return this.category === ALL ? this.categories().filter((category) => category !== PIPELINE) : [this.category];
  }

  /** Draw what has changed; rebuild everything if the statistics have changed. @param {number} [rest] See `redraw`. */
  renew(rest) {
    const all = this.categories();
    if (this.category !== ALL && !all.includes(this.category)) this.category = all.find((name) => name !== PIPELINE) ?? all[0] ?? "";
    if (this.layout() === this.laid) this.redraw(rest);
    else this.build();
  }

  /** What the tabs, the legend and the charts depend on. */
  layout() {
    return JSON.stringify([this.runs.map((run) => Object.keys(run.all)), this.statistics()]);
  }

  /** The names of the statistics that are shown, in their order. */
  statistics() {
    const names = new Set(this.runs.flatMap((run) => this.chosen().flatMap((category) => Object.keys(run.all[category] ?? {}))));
    const rank = (name) => (ORDER.indexOf(groupOf(name)) + ORDER.length + 1) % (ORDER.length + 1);
    return [...names].filter((name) => name.toLowerCase().includes(this.filter)).sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
  }

  /** Rebuild the charts, in the page's colours. */
  build() {
    this.seen.disconnect();
    for (const chart of this.charts.values()) chart.plot?.destroy();
    this.charts.clear();
    const all = this.categories(), behaviors = all.filter((category) => category !== PIPELINE), names = this.statistics();
    this.laid = this.layout();
    const tab = (group, key, words, title) => h("button", { type: "button", "aria-pressed": String(this[group] === key), title, "data-tab": key === ALL ? "*" : key, click: () => { this[group] = key; this.build(); } }, words);
    fill(this.tabs, ...all.map((category) => tab("category", category, clip(category, 32), category)), behaviors.length > 1 ? tab("category", ALL, "all behaviours", "All behaviours in one chart") : null);
    fill(this.axis, ...Object.entries(AXES).map(([x, words]) => tab("x", x, words, x === "updates" ? "Policy updates; ML-Agents does not record them" : null)));
    this.inks = Array.from({ length: INKS }, (_, at) => colour(`line-${at}`));
    this.showLegend();
    for (const name of names) this.charts.set(name, new Chart(name, this));
    fill(this.body, h("div.charts", {}, ...[...this.charts.values()].map((chart) => chart.element)));
    if (!names.length) fill(this.body, h("p.soft", {}, this.filter ? "No curve matches the filter." : "No summary yet."));
    for (const chart of this.charts.values()) this.seen.observe(chart.element);
    this.redraw();
  }

  /** The groups of runs that are drawn as one line, with their labels. @returns {{label: string, runs: any[]}[]} */
  lots() {
    const groups = new Map();
    for (const run of this.runs) groups.set(this.mean ? run.group : run, [...(groups.get(this.mean ? run.group : run) ?? []), run]);
    return [...groups.values()].map((runs) => ({ runs, label: runs.length > 1 ? commonName(runs.map((run) => run.name)) : runs[0].name }));
  }

  /** @param {number} at */
  ink(at) {
    return { ink: this.inks[at % INKS], dash: at % (2 * INKS) < INKS ? undefined : DASH };
  }

  /** Show what the colours mean: runs that have the chosen behaviours, or behaviours of one run; behaviours of several runs differ in their dashes. */
  showLegend() {
    const chosen = this.chosen(), several = this.runs.length > 1;
    const found = several ? this.lots() : chosen.map((label) => ({ label, runs: [] }));
    const buttons = found.map(({ label, runs }, at) => (several && !runs.some((run) => chosen.some((category) => run.all[category])) ? null : h("button.quiet", { type: "button", title: runs.map((run) => run.name).join(", ") || label, "aria-pressed": String(!this.hidden.has(label)), "data-line": label, click: () => {
      if (!this.hidden.delete(label)) this.hidden.add(label);
      this.showLegend();
      this.redraw();
    } }, spot(this.ink(at)), clip(label, 32), runs.length > 1 ? " (mean ± SD)" : "")));
    const dashes = several && chosen.length > 1 ? chosen.map((category, of) => h("span.dash", { title: category }, spot({ ink: colour("soft"), dash: dashOf(of) }), clip(category, 32))) : [];
    fill(this.legend, ...(several || found.length > 1 ? [...buttons, ...dashes] : []));
  }

  /** A chart's lines. @param {string} statistic */
  lines(statistic) {
    const chosen = this.chosen(), several = this.runs.length > 1, found = [];
    this.lots().forEach(({ runs, label }, at) => chosen.forEach((category, of) => {
      const name = several ? label : category;
      const lines = this.hidden.has(name) ? [] : runs.map((run) => this.line(run, category, statistic)).filter((line) => line?.xs.length);
      if (!lines.length) return;
      const line = lines.length > 1 ? { ...meanOf(lines), marks: lines.flatMap(({ marks }) => marks) } : lines[0];
      const look = this.ink(several ? at : of);
      found.push({ ...line, ...look, dash: (several && dashOf(of)) || look.dash, label: several && chosen.length > 1 ? `${label} · ${category}` : name });
    }));
    return found;
  }

  /** One run's curve over the chosen axis. @param {any} run @param {string} category @param {string} statistic */
  line(run, category, statistic) {
    const columns = run.all[category]?.[statistic];
    if (!columns) return null;
    const counted = run.all[category][UPDATES];
    if (this.x === "updates" && !counted?.steps.length) return null;
    const over = (steps, times) => (this.x === "steps" ? steps : this.x === "times" ? times : between({ xs: counted.steps, values: counted.values }, steps));
    const marks = run.marks[category] ?? [];
    const places = over(marks.map(([step]) => step), marks.map(([, time]) => time));
    return { xs: over(columns.steps, columns.times), values: columns.values, marks: marks.map(([, , kind, text], at) => ({ kind, text, x: places[at] })) };
  }

  /** Draw the charts in view now. @param {number} [rest] Milliseconds after which the others follow, when the browser is idle. */
  redraw(rest = 0) {
    for (const chart of this.charts.values()) {
      chart.stale = true;
      if (chart.visible) chart.draw();
    }
    this.large?.draw();
    if (rest && this.later) return;
    clearTimeout(this.later);
    this.later = setTimeout(() => { this.later = 0; idle((deadline) => this.drawRest(deadline)); }, rest);
  }

  /** Draw the charts out of view, so that a screenshot of the whole page is complete. @param {{timeRemaining: () => number}} deadline */
  drawRest(deadline) {
    for (const chart of this.charts.values()) {
      if (!chart.stale) continue;
      chart.draw();
      if (!deadline.timeRemaining()) return void idle((next) => this.drawRest(next));
    }
  }

  /** Show a statistic enlarged, with its explanation. @param {string} name */
  async enlarge(name) {
    const chart = (this.large = new Chart(name, this, true)), file = `${this.runs.length > 1 ? "runs" : this.runs[0].name}-${name}`.replace(/[^\w.-]+/g, "_");
    const words = h("div.explained", { tabindex: -1 });
    const button = (key, click, text) => h("button", { type: "button", "data-do": key, click }, text);
    const tools = h("div.buttons", {}, button("png", async () => save(`${file}.png`, await chart.png()), "PNG"), button("csv", () => save(`${file}.csv`, chart.csv()), "CSV"), button("close", () => this.dialog.close(), "Close"));
    fill(this.dialog, h("div.head", {}, h("h2", {}, name), tools), chart.element, words);
    this.dialog.showModal();
    chart.draw();
    const found = await explain(name).catch(() => undefined);
    const line = (head, markdown) => h("p", {}, h("b", {}, `${head}: `), ...pieces(markdown).map(({ text, code }) => (code ? h("code", {}, text) : text)));
    fill(words, ...(found ? [line("What it is", found.what), line("What it should do", found.should)] : [h("p", {}, "docs/statistics.md does not describe this statistic. It comes from your code or from the environment.")]));
  }
}
