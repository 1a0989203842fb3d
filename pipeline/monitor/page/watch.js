// Watching one game of the run, and playing in it.
import { openSocket } from "./api.js";
import { fill, h, short } from "./dom.js";
import { Stage } from "./stage.js";

const BEAT_MS = 250;
const AGAIN_MS = 2000;
const SILENT_MS = 5000;
const SIGNS = { ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓" };
const SPEEDS = [0.25, 0.5, 1, 2, 4];

/** The server's name for a key. @param {KeyboardEvent} event */
const nameOf = (event) => (event.key === " " ? "Space" : event.key.length === 1 ? event.key.toLowerCase() : event.key);
/** @param {string} key */
const sign = (key) => SIGNS[/** @type {keyof typeof SIGNS} */ (key)] ?? (key.length === 1 ? key.toUpperCase() : key);

/** A side's label. @param {any} side */
const called = (side) => side.name + (side.mine ? " (you)" : side.taken ? " (another viewer)" : "");

/** The page's section for watching and playing. */
export class Watch {
  /** @param {string} run @param {{refused: string, own: boolean}|undefined} offer Undefined if there is nothing to watch. */
  constructor(run, offer) {
    this.run = run;
    this.offered = Boolean(offer);
    this.held = new Set();
    this.number = 0;
    this.state = /** @type {any} */ (null);
    this.seen = this.silent = 0;
    this.lost = /** @type {string|undefined} */ (undefined);
    this.picture = /** @type {any} */ ({});
    this.tools = h("div.buttons");
    this.element = h("div.body.watch");
    if (!offer) return;
    if (offer.refused) fill(this.element, h("p.empty", {}, `${offer.refused}.`));
    else this.invite(offer.own ? "This is the run's own game. It pauses while a human side is free." : "Shows a game at normal speed, with the newest policies. A separate process plays it while someone is watching.");
  }

  /** @param {string} words Text next to the button. */
  invite(words) {
    fill(this.element, h("div.invite", {}, h("button.primary", { type: "button", "data-do": "watch", click: () => this.open() }, "Watch a game"), h("span.soft", {}, words)));
  }

  open() {
    this.canvas = h("canvas", { "aria-label": "The game" });
    this.note = h("div.note", { role: "status" });
    this.stage = h("div.stage", { tabindex: 0, keydown: (event) => this.key(event, true), keyup: (event) => this.key(event, false), blur: () => this.release() }, this.canvas, this.note);
    this.drawing = new Stage(this.canvas);
    this.score = h("div.score");
    this.pads = h("div.pads");
    this.said = h("p.soft", { role: "status" });
    this.sides = h("div.sides");
    fill(this.element, this.score, this.stage, this.pads, this.sides, this.said);
    this.pause = h("button", { type: "button", "data-do": "hold", click: () => this.pace(!this.state?.paused, this.state?.speed ?? 1) }, "Pause");
    this.speed = h("select", { "aria-label": "Speed", change: () => this.pace(this.state.paused, Number(this.speed.value)) }, ...SPEEDS.map((speed) => h("option", { value: speed }, `${speed} ×`)));
    this.record = h("button", { type: "button", "data-do": "record", hidden: true, click: () => this.send({ do: "record", side: this.state.recorded ? "" : this.mine()?.id ?? "" }) }, "Record");
    fill(this.tools, this.record, this.speed, this.pause, h("button", { type: "button", click: () => this.close(true) }, "Close"));
    this.beat = setInterval(() => this.look(), BEAT_MS);
    this.hiding = () => this.close(true);
    addEventListener("pagehide", this.hiding); // a page in the back/forward cache would keep its socket open
    this.connect();
  }

  /** Runs a few times a second: reports to the server that the viewer is still here, and shows a message if no frame arrives. The run's own game may wait for a person instead. */
  look() {
    this.tell();
    const silent = this.state?.status === "on" && !this.state.paused && !this.state.own ? performance.now() - this.seen : 0;
    if (silent > SILENT_MS) this.say(`No picture for ${short(Math.floor(silent / 1000))} s: the game is not responding, or the connection was lost.`);
    else if (this.silent > SILENT_MS) this.explain();
    this.silent = silent;
  }

  /** Show the server's latest message. */
  explain() {
    const state = this.state;
    this.say(state.status === "starting" ? "Starting the game…" : state.trouble || state.waits || state.saved);
    if (state.status === "failed") this.said.append(" ", h("button", { type: "button", "data-do": "again", click: () => this.send({ do: "start" }) }, "Restart the game"));
  }

  connect() {
    this.seen = performance.now();
    const socket = (this.socket = openSocket(this.run, "watch"));
    socket.onmessage = (message) => (typeof message.data === "string" ? this.hear(JSON.parse(message.data)) : this.see(message.data));
    socket.onclose = (event) => {
      if (socket !== this.socket) return;
      this.lost = this.mine()?.id ?? this.lost;
      this.release();
      if (event.code === 1001) return this.finish();
      this.say("Connection lost. Reconnecting…");
      this.again = setTimeout(() => this.connect(), AGAIN_MS);
    };
  }

  /** @param {boolean} [again] True to offer the button again. */
  close(again = false) {
    clearInterval(this.beat);
    if (this.hiding) removeEventListener("pagehide", this.hiding);
    clearTimeout(this.again);
    const socket = this.socket;
    this.socket = undefined;
    socket?.close();
    this.state = null;
    this.held.clear();
    if (!again) return;
    fill(this.tools);
    this.invite("");
  }

  /** Handle the run's end: the last frame and the score stay. */
  finish() {
    this.close();
    fill(this.tools);
    fill(this.pads);
    fill(this.sides);
    this.note.hidden = true;
    this.say("The run has ended.");
  }

  /** @param {any} wish */
  send(wish) {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(wish));
  }

  mine() {
    return this.state?.sides.find((/** @type {any} */ side) => side.mine);
  }

  /** @param {any} side */
  take(side) {
    this.lost = undefined;
    this.send({ do: side.mine ? "leave" : "take", side: side.id });
  }

  /** @param {boolean} paused @param {number} speed */
  pace(paused, speed) {
    this.send({ do: "pace", paused, speed });
  }

  /** @param {KeyboardEvent} event @param {boolean} down */
  key(event, down) {
    const side = this.mine(), key = nameOf(event);
    if (!side?.keys.flat().includes(key) || (down && (event.ctrlKey || event.metaKey || event.altKey))) return;
    event.preventDefault();
    if (!event.repeat) this.press(key, down);
  }

  /** @param {string} key @param {boolean} down */
  press(key, down) {
    if (down) this.held.add(key);
    else this.held.delete(key);
    this.tell();
  }

  release() {
    this.held.clear();
    this.tell();
    this.cue();
  }

  /** Send all held keys to the server: at each change, and regularly as a sign of life. */
  tell() {
    const side = this.mine();
    if (side) this.send({ do: "keys", side: side.id, number: this.number++, held: [...this.held] });
  }

  /** @param {any} state */
  hear(state) {
    if (state.error) return this.say(state.error);
    const before = this.mine()?.id;
    this.state = state;
    if (JSON.stringify(state.display) !== this.drawing.prepared) {
      this.drawing.prepared = JSON.stringify(state.display);
      this.drawing.prepare(state.display);
    }
    const mine = this.mine();
    this.pause.textContent = state.paused ? "Resume" : "Pause";
    this.speed.value = String(state.speed);
    this.record.hidden = !mine || state.own;
    this.record.className = state.recorded ? "danger" : "";
    this.showSides(state);
    this.showPads(mine);
    this.explain();
    if (mine) this.lost = undefined;
    else if (this.lost && !state.sides.find((/** @type {any} */ side) => side.id === this.lost)?.taken) this.send({ do: "take", side: this.lost }); // the side that was lost with the connection
    if (mine && mine.id !== before) {
      this.tell();
      this.stage.focus({ preventScroll: true });
      this.stage.scrollIntoView({ block: "nearest" });
    }
    this.cue();
    this.showScore();
  }

  /** @param {any} state */
  showSides(state) {
    const key = JSON.stringify([state.sides, state.may_play]);
    if (key === this.sides.shown) return;
    this.sides.shown = key;
    fill(this.sides, ...state.sides.map((/** @type {any} */ side) => {
      const choices = side.choices.includes(side.player) ? side.choices : [side.player, ...side.choices]; // the player has been removed since
      const choose = h("select", { "aria-label": `Who plays ${side.name}`, "data-side": side.id, change: () => this.send({ do: "give", side: side.id, player: choose.value }) }, ...choices.map((/** @type {string} */ name) => h("option", { value: name, selected: name === side.player }, name)));
      const label = side.mine ? "Leave" : side.taken ? "Taken" : "Play";
      const take = h(`button${side.mine ? "" : ".primary"}`, { type: "button", "data-take": side.id, disabled: side.taken && !side.mine, click: () => this.take(side) }, label);
      return h("div.side", {}, h("b", {}, called(side)), side.choices.length ? choose : null, state.may_play && side.playable ? take : null);
    }), state.may_play ? null : h("span.soft", {}, "To play, start the run with --monitor-control."));
  }

  /** Buttons for the keys, for screens without a keyboard. @param {any} mine */
  showPads(mine) {
    const key = JSON.stringify(mine?.keys ?? []);
    if (key === this.pads.shown) return;
    this.pads.shown = key;
    this.pads.classList.toggle("row", (mine?.keys ?? []).every((/** @type {string[]} */ [name, ...more]) => /^\d$/.test(name) && !more.length)); // choices, such as a board's columns, stay in one row, each below its column
    fill(this.pads, ...(mine?.keys ?? []).map((/** @type {string[]} */ keys) => {
      const up = () => this.press(keys[0], false);
      const down = (/** @type {PointerEvent} */ event) => {
        event.preventDefault();
        this.stage.focus({ preventScroll: true });
        this.press(keys[0], true);
      };
      return h("button.pad", { type: "button", tabindex: -1, "data-key": keys[0], pointerdown: down, pointerup: up, pointercancel: up, pointerleave: up, contextmenu: (/** @type {Event} */ event) => event.preventDefault() }, h("b", {}, sign(keys[0])), keys.length > 1 ? h("span.soft", {}, keys.slice(1).map(sign).join(" ")) : null);
    }));
  }

  /** @param {ArrayBuffer} data */
  see(data) {
    this.seen = performance.now();
    const length = new DataView(data).getUint32(0, true);
    this.picture = JSON.parse(new TextDecoder().decode(new Uint8Array(data, 4, length)));
    this.drawing.show(this.picture, data.slice(4 + length), this.picture.heads[this.mine()?.id]);
    this.showScore();
    this.cue();
  }

  /** Show the text over the game. */
  cue() {
    if (!this.note) return;
    const { note, about } = this.picture, mine = this.mine();
    const name = this.state?.sides.find((/** @type {any} */ side) => side.id === about)?.name ?? about;
    const whose = mine?.id === about ? "you" : name;
    const words = { point: `Point for ${whose}`, won: mine ? (mine.id === about ? "You win!" : "You lose") : `${name} wins`, drawn: "Draw", over: "", key: mine ? "Your move" : "" };
    let text = /** @type {Record<string, string>} */ (words)[note] ?? note ?? "";
    if (mine && this.stage !== document.activeElement && !this.held.size) text = "Click here to play";
    if (this.state?.paused) text = "Paused";
    if (this.note.textContent !== text) this.note.textContent = text;
    this.note.hidden = !text;
    this.note.classList.toggle("low", note === "key"); // the player needs to see the board
  }

  showScore() {
    const { score = {}, wins = {}, returns = {}, games = 0, recorded = 0 } = this.picture, sides = this.state?.sides ?? [];
    const points = Object.keys(score).length > 0, teams = points || Object.keys(wins).length > 0;
    const parts = sides.map((/** @type {any} */ side) => h("span", { "data-score": side.id }, h("span.soft", {}, `${called(side)} `), h("b", {}, points ? score[side.id] ?? 0 : teams ? wins[side.id] ?? 0 : short(returns[side.id])), points ? h("span.soft", {}, ` · ${wins[side.id] ?? 0} won`) : null));
    const aim = this.state?.display?.aim;
    const last = games ? `${games} ${teams ? "game" : "episode"}${games === 1 ? "" : "s"}` : "";
    const key = JSON.stringify([score, wins, returns, games, aim, sides.map(called)]);
    if (key !== this.score.shown) fill(this.score, ...parts, h("span.soft", {}, [aim, last].filter(Boolean).join(" · ")));
    this.score.shown = key;
    if (this.record) this.record.textContent = this.state?.recorded ? `Stop recording (${recorded})` : "Record";
  }

  /** @param {string} words */
  say(words) {
    this.said.textContent = words ?? "";
  }
}
