// One run on the page: its sections, kept up to date.
import { ask, follow } from "./api.js";
import { Controls } from "./control.js";
import { duration, fill, h } from "./dom.js";
import { drawGraph } from "./graph.js";
import { drawLeague } from "./league.js";
import { behaviorTable, hostTable, playerTable, queueTable } from "./tables.js";
import { Watch } from "./watch.js";

const MOST_LINES = 400;
const LEAGUE_EVERY_MS = 10000;

/** A run and its element. */
export class Run {
  /**
   * @param {{id: string, name: string, live: boolean}} run
   * @param {{control: boolean, watch?: {refused: string}}} options
   * @param {(status: string, message: string) => void} tell Called with the status and message for the banner.
   * @param {import("./curves.js").Curves} curves The curves of all runs.
   */
  constructor(run, options, tell, curves) {
    this.run = run;
    this.tell = tell;
    this.curves = curves;
    this.sequence = this.told = 0;
    this.status = "";
    const section = (id, title, ...children) => h("section", { "data-section": id }, h("h2", {}, title, h("div.tools")), ...children);
    this.pill = h("span.pill");
    this.facts = h("div.facts");
    this.controls = new Controls(run.id, options.control && run.live);
    this.behaviors = h("section", {}, h("div.scroll", { tabindex: 0 }));
    this.graph = h("div.graph", { tabindex: 0 });
    this.queues = h("div.scroll", { tabindex: 0 });
    this.league = h("div.body");
    this.hosts = h("div.scroll", { tabindex: 0 });
    this.log = h("div.log", { tabindex: 0 });
    this.yaml = h("pre", { tabindex: 0 });
    this.bottleneck = h("p.bottleneck");
    const key = h("div.key", {}, h("span", {}, h("i"), "flowing"), h("span", {}, h("i.warn"), "full"), h("span", {}, h("i.bad"), "bottleneck"));
    this.wiring = section("pipeline", "Pipeline", this.graph, h("details", {}, h("summary", {}, "All queues"), this.queues));
    this.wiring.querySelector(".tools").append(key);
    this.selfplay = section("selfplay", "Self-play", this.league);
    this.watch = new Watch(run.id, run.live ? options.watch : undefined);
    const watched = section("watch", "Watch", this.watch.element);
    watched.querySelector(".tools").append(this.watch.tools);
    watched.hidden = !this.watch.offered;
    this.processes = section("processes", "Processes", this.hosts);
    const configuration = h("section", { "data-section": "configuration" }, h("details", { toggle: () => this.readConfiguration() }, h("summary", {}, "Resolved configuration"), this.yaml));
    this.element = h("article.run", { "data-run": run.name }, h("div.head", {}, h("h1", {}, run.name), this.pill, this.facts, this.controls.buttons), this.bottleneck, this.controls.values, this.behaviors, this.wiring, this.selfplay, watched, this.processes, section("log", "Log", this.log), configuration);
    for (const each of [this.wiring, this.processes]) each.hidden = !run.live;
  }

  /** Show the run, and follow it if it is live. */
  async start() {
    await this.read();
    if (!this.run.live) return;
    let done = Promise.resolve(); // handles events one at a time, even while the whole run is reread
    this.timer = setInterval(() => this.readLeagues().catch(() => {}), LEAGUE_EVERY_MS);
    this.stop = follow(this.run.id, (event) => { done = done.then(() => this.receive(event)).catch(console.error); }, (connected) => this.connection(connected));
  }

  /** Stop following the run. */
  end() {
    clearInterval(this.timer);
    this.stop?.();
    this.watch.close();
  }

  async read() {
    const of = (what) => ask(`runs/${this.run.id}/${what}`);
    this.show(await of("state"));
    await Promise.all([this.readLeagues(), of("log").then((lines) => this.addLines(lines, true))]);
  }

  async readLeagues() {
    this.leagues = await ask(`runs/${this.run.id}/leagues`);
    this.showLeagues();
  }

  showLeagues() {
    const text = JSON.stringify([this.leagues, this.players ?? null]);
    this.selfplay.hidden = !this.leagues.length;
    if (text === this.shownLeagues) return;
    this.shownLeagues = text;
    fill(this.league, ...(this.players ?? []).map(playerTable), ...this.leagues.map(drawLeague));
  }

  async readConfiguration() {
    const { yaml } = await ask(`runs/${this.run.id}/configuration`).catch(({ message }) => ({ yaml: `# ${message}` }));
    this.yaml.textContent = yaml;
  }

  /** @param {any} event An event from the stream. */
  async receive(event) {
    const missed = this.sequence && event.sequence !== this.sequence + 1;
    const first = !this.sequence;
    this.sequence = event.sequence;
    this.show(event.state);
    if (missed || first || event.revision !== this.curves.run(this.run.id).revision) {
      return Promise.all([this.read(), this.curves.read(this.run.id)]).catch(() => { this.sequence = 0; }); // the next event rereads everything
    }
    this.curves.add(this.run.id, event);
    this.addLines(event.log);
  }

  /** @param {boolean} connected */
  connection(connected) {
    if (connected) return this.tell(this.status, this.message);
    this.sequence = 0; // everything is reread after the reconnection
    const over = ["ended", "failed"].includes(this.status);
    if (!over) this.pill.className = "pill lost";
    if (!over) this.pill.textContent = "connection lost";
    this.tell(over ? this.status : "lost", this.message);
  }

  /** @param {any} state */
  show(state) {
    this.status = state.status;
    this.message = state.message;
    this.players = state.players;
    this.pill.className = `pill ${state.status}`;
    this.pill.textContent = state.status;
    const fact = (name, value) => h("span", {}, `${name} `, h("b", {}, value));
    const checkpoint = state.checkpoint === null ? null : state.checkpoint_under_way ? "saving…" : state.checkpoint >= 0 ? String(state.checkpoint) : "none yet";
    const over = ["ended", "failed"].includes(state.status);
    const left = state.status === "paused" ? "paused" : over || state.seconds_left === null ? null : duration(state.seconds_left);
    const facts = [fact("elapsed", duration(state.elapsed_s)), left && fact("left", left), checkpoint && fact("checkpoint", checkpoint)];
    fill(this.facts, ...(this.run.live ? facts : []));
    const cause = state.bottleneck;
    this.bottleneck.hidden = !cause || (this.run.live && state.status !== "running");
    this.bottleneck.classList.toggle("bad", Boolean(cause?.host));
    fill(this.bottleneck, ...(cause?.text ?? "").split("`").map((part, at) => (at % 2 ? h("span.mono", {}, part) : part)));
    this.controls.show(state);
    fill(this.behaviors.firstChild, behaviorTable(state));
    this.behaviors.hidden = !state.behaviors.length;
    if (!this.run.live) return;
    if (state.hosts.length) fill(this.graph, drawGraph(state));
    fill(this.queues, queueTable(state));
    fill(this.hosts, hostTable(state), state.usage_lacks ? h("p", {}, state.usage_lacks) : null);
  }

  /** @param {any[]} lines @param {boolean} [all] */
  addLines(lines, all = false) {
    const atEnd = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 30;
    const clock = (time) => new Date(1000 * time).toLocaleTimeString("en-GB");
    const fresh = all ? lines : lines.filter(({ number }) => number > this.told); // an earlier full read may contain some of them
    this.told = lines.at(-1)?.number ?? (all ? 0 : this.told);
    const rows = fresh.map((line) => h(`div.${line.level}`, {}, h("time", {}, clock(line.time)), h("span", {}, line.text)));
    if (all) fill(this.log, ...rows);
    else this.log.append(...rows);
    while (this.log.children.length > MOST_LINES) this.log.firstChild.remove();
    this.log.parentElement.hidden = !this.log.children.length && !this.run.live;
    if (atEnd || all) this.log.scrollTop = this.log.scrollHeight;
  }

  /** Redraw in other colours or at another width, without reading anything, because the run may be gone. */
  recolour() {
    this.shownLeagues = "";
    if (this.leagues) this.showLeagues();
    this.log.scrollTop = this.log.scrollHeight;
  }
}
