// The pipeline's graph: hosts in columns, and the queues between them with their contents.
import { clip, h, percent, short } from "./dom.js";

const BOX = 172, GAP = 208, ROW = 22, HEAD = 26, PAD = 8, QUEUE = { width: 132, height: 36 }, STEP = QUEUE.height + 8;
const COLUMN = { actor: 0, replay: 0, main: 1, learner: 2, follower: 2, inference: 2, replay_shard: 3, evaluation: 0 };
const MOST_ALIKE = 4;
const WORDS = { agent_processor: "agent processor", policy_publisher: "policy publisher", replay_buffer: "replay buffer" };

/**
 * How severe the waiting at an edge is: for the bottleneck, or by producers for room in a queue.
 * @param {any} edge
 * @returns {""|"warn"|"bad"}
 */
export function pressure(edge) {
  const held = levelOf(edge.held);
  if (edge.newest || edge.kind === "credits") return held;
  return held === "bad" ? held : levelOf(edge.put_wait) || held || (edge.depth >= edge.capacity ? "warn" : "");
}

/** @param {number|null|undefined} waits Share of the time. */
const levelOf = (waits) => ((waits ?? 0) >= 0.5 ? "bad" : (waits ?? 0) >= 0.1 ? "warn" : "");

/**
 * Draw the graph.
 * @param {any} state The run's state.
 * @returns {SVGElement}
 */
export function drawGraph(state) {
  const { hosts, edges } = gathered(state);
  const spans = edges.filter((edge) => Math.abs(columnOf(hosts, edge.source[0]) - columnOf(hosts, edge.target[0])) > 1);
  const lanes = spans.length * STEP;
  const places = placed(hosts, lanes);
  const several = state.behaviors.length > 1;
  const centres = queuePlaces(edges, spans, places);
  const right = Math.max(...[...places.values()].map((box) => box.x + BOX));
  const lowest = Math.max(...[...places.values()].map((box) => box.y + box.height), ...[...centres.values()].map((at) => at.y + QUEUE.height / 2));
  const svg = h("svg:svg", { width: right + 2, height: lowest + 6, viewBox: `0 0 ${right + 2} ${lowest + 6}`, role: "img", "aria-label": "The pipeline" });
  for (const edge of edges) svg.append(drawFlow(edge, places, centres.get(edge), spans.includes(edge)));
  for (const box of places.values()) svg.append(drawBox(box, state.bottleneck));
  for (const edge of edges) svg.append(drawQueue(edge, centres.get(edge), several, state.status === "paused"));
  return svg;
}

/** Draw many hosts of a kind as one. @param {any} state */
function gathered(state) {
  const alike = new Map();
  for (const host of state.hosts) {
    const key = `${host.role} ${host.behavior}`;
    alike.set(key, [...(alike.get(key) ?? []), host]);
  }
  const name = new Map(), hosts = [];
  for (const group of alike.values()) {
    const many = group.length > MOST_ALIKE;
    for (const host of group) name.set(host.name, many ? `${group[0].name} … ${group.at(-1).name}` : host.name);
    hosts.push(...(many ? [{ ...group[0], name: name.get(group[0].name), count: group.length, ended: group.every((host) => host.ended) }] : group));
  }
  const edges = new Map();
  for (const edge of state.edges) {
    const ends = { source: [name.get(edge.source[0]), edge.source[1]], target: [name.get(edge.target[0]), edge.target[1]] };
    if (!ends.source[0] || !ends.target[0]) continue;
    const key = JSON.stringify([edge.kind, ["policies", "asked", "answered"].includes(edge.kind) ? edge.behavior : edge.queue, ends]);
    const same = edges.get(key);
    if (!same) edges.set(key, { ...edge, ...ends });
    else for (const [key, how] of Object.entries({ depth: Math.max, high_water: Math.max, put_wait: Math.max, get_wait: Math.max, held: Math.max, rate: (a, b) => a + b })) same[key] = how(same[key], edge[key]);
  }
  return { hosts, edges: [...edges.values()] };
}

const columnOf = (hosts, name) => COLUMN[hosts.find((host) => host.name === name)?.role] ?? 0;

/** Give each host its box, column by column. */
function placed(hosts, lanes) {
  const used = [...new Set(hosts.map((host) => COLUMN[host.role] ?? 0))].sort();
  const tall = (host) => HEAD + host.stages.length * ROW + PAD;
  const heights = used.map((column) => hosts.filter((host) => (COLUMN[host.role] ?? 0) === column).reduce((sum, host) => sum + tall(host) + 14, -14));
  const most = Math.max(...heights.map((height, at) => height + (used[at] === 1 ? lanes : 0)), 110);
  const places = new Map();
  used.forEach((column, at) => {
    const top = column === 1 ? lanes : 0;
    let y = 4 + top + Math.max(0, (most - top - heights[at]) / 2);
    for (const host of hosts.filter((each) => (COLUMN[each.role] ?? 0) === column)) {
      places.set(host.name, { host, x: 1 + at * (BOX + GAP), y, height: tall(host) });
      y += tall(host) + 14;
    }
  });
  return places;
}

const portOf = (places, [name, stage], side) => {
  const box = places.get(name);
  const row = Math.max(0, box.host.stages.indexOf(stage));
  return { x: box.x + (side === "right" ? BOX : 0), y: box.y + HEAD + row * ROW + ROW / 2 - 2 };
};

/** Place queues between the boxes that they connect, one below the other; queues that pass main are above it. */
function queuePlaces(edges, spans, places) {
  const centres = new Map(), gaps = new Map();
  spans.forEach((edge, lane) => {
    const [a, b] = [places.get(edge.source[0]), places.get(edge.target[0])];
    centres.set(edge, { x: (Math.min(a.x, b.x) + Math.max(a.x, b.x) + BOX) / 2, y: 4 + lane * STEP + QUEUE.height / 2 });
  });
  for (const edge of edges.filter((each) => !centres.has(each))) {
    const [a, b] = [places.get(edge.source[0]), places.get(edge.target[0])];
    const x = (Math.min(a.x, b.x) + BOX + Math.max(a.x, b.x)) / 2;
    const forward = a.x < b.x;
    const wish = (portOf(places, edge.source, forward ? "right" : "left").y + portOf(places, edge.target, forward ? "left" : "right").y) / 2;
    gaps.set(x, [...(gaps.get(x) ?? []), { edge, wish: wish + (edge.newest ? 12 : -12) }]);
  }
  for (const [x, members] of gaps) {
    members.sort((a, b) => a.wish - b.wish);
    const middle = members.reduce((sum, each) => sum + each.wish, 0) / members.length;
    let y = Math.max(QUEUE.height / 2 + 4, middle - ((members.length - 1) * STEP) / 2);
    for (const { edge, wish } of members) {
      y = members.length > 1 ? y : Math.max(QUEUE.height / 2 + 4, wish);
      centres.set(edge, { x, y });
      y += STEP;
    }
  }
  return centres;
}

function drawFlow(edge, places, centre, over) {
  const forward = places.get(edge.source[0]).x < places.get(edge.target[0]).x;
  const from = portOf(places, edge.source, forward ? "right" : "left"), to = portOf(places, edge.target, forward ? "left" : "right");
  const sign = forward ? 1 : -1, half = (QUEUE.width / 2) * sign;
  const bend = (a, b) => `C${a.x + (b.x - a.x) * 0.6} ${a.y} ${a.x + (b.x - a.x) * 0.4} ${b.y} ${b.x} ${b.y}`;
  const enters = { x: centre.x - half, y: centre.y }, leaves = { x: centre.x + half, y: centre.y };
  const before = over ? { x: from.x + GAP * sign * 0.9, y: centre.y } : enters, after = over ? { x: to.x - GAP * sign * 0.9, y: centre.y } : leaves;
  const path = `M${from.x} ${from.y}${bend(from, before)}L${enters.x} ${enters.y}M${leaves.x} ${leaves.y}L${after.x} ${after.y}${bend(after, to)}`;
  const tip = `M${to.x - 6 * sign} ${to.y - 3.5}L${to.x} ${to.y}L${to.x - 6 * sign} ${to.y + 3.5}`;
  const level = pressure(edge);
  return h("svg:path", { class: `flow ${edge.newest ? "newest" : ""} ${level}`, d: path + tip });
}

/** @param {any} box @param {any} bottleneck The run's bottleneck. */
function drawBox({ host, x, y, height }, bottleneck) {
  const kind = host.ended ? "ended" : host.kind === "main" ? "" : host.kind;
  const level = bottleneck?.host && (bottleneck.host === host.name || bottleneck.host === `${host.role}s`) ? "bad" : "";
  const group = h("svg:g", { class: `host ${level}`, "data-host": host.name, "data-level": level || "free" });
  group.append(
    h("svg:rect", { class: `box ${host.ended ? "ended" : ""}`, x, y, width: BOX, height, rx: 7 }),
    h("svg:text", { class: "title", x: x + 10, y: y + 17 }, clip(host.count ? `${host.name.split(" … ")[0].replace(/-0$/, "")} × ${host.count}` : host.name, Math.floor(24 - 0.9 * kind.length))),
    h("svg:text", { class: "kind", x: x + BOX - 9, y: y + 17, "text-anchor": "end" }, kind),
  );
  const cause = (stage) => level && stage === bottleneck.stage;
  host.stages.forEach((stage, row) => {
    const top = y + HEAD + row * ROW - 2;
    group.append(
      h("svg:rect", { class: `stage ${cause(stage) ? level : ""}`, x: x + 6, y: top, width: BOX - 12, height: ROW - 3, rx: 4 }),
      h("svg:text", { class: "stage-name", "data-stage": stage, x: x + 13, y: top + 13.5 }, clip(WORDS[stage] ?? stage, 26)),
      cause(stage) ? h("svg:text", { class: "numbers", x: x + BOX - 13, y: top + 13.5, "text-anchor": "end" }, `${percent(bottleneck.busy)} busy`) : "",
    );
  });
  return group;
}

function drawQueue(edge, { x, y }, several, paused) {
  const left = x - QUEUE.width / 2, top = y - QUEUE.height / 2, level = pressure(edge);
  const group = h("svg:g", { class: `edge ${level}`, "data-queue": edge.queue, "data-level": level || "free" });
  const name = several ? `${edge.kind} ${edge.behavior}` : edge.kind;
  const credits = edge.kind === "credits", flows = credits ? `${short(edge.depth)} of ${short(edge.capacity)}` : `${short(edge.rate)}/s`;
  const waits = paused ? "paused" : level ? `waits ${percent(Math.max(edge.held ?? 0, edge.put_wait))}` : flows;
  const meaning = credits
    ? `${edge.queue}\n${edge.depth} of the ${edge.capacity} steps that actors may run ahead of the learner are used or granted\nactors wait ${percent(edge.get_wait)} of the time for more`
    : `${edge.queue}\n${edge.depth} of at most ${edge.capacity} items, peak ${edge.high_water}\nproducers wait ${percent(edge.put_wait)} of the time, consumers ${percent(edge.get_wait)}\n${short(edge.rate)} items per second`;
  group.append(
    h("svg:title", {}, meaning),
    h("svg:rect", { class: "queue", x: left, y: top, width: QUEUE.width, height: QUEUE.height, rx: 6 }),
    h("svg:text", { class: "label", x: left + 8, y: top + 14 }, clip(name, 21)),
    h("svg:text", { class: "numbers", x: left + QUEUE.width - 8, y: top + 28.5, "text-anchor": "end" }, waits),
  );
  if (edge.newest) group.append(h("svg:text", { class: "numbers", x: left + 8, y: top + 28.5 }, "newest only"));
  else if (!credits) {
    const slots = Math.min(edge.capacity, 8), width = Math.min(9, 44 / slots);
    for (let slot = 0; slot < slots; slot++) {
      const full = slot < Math.ceil((edge.depth / edge.capacity) * slots);
      group.append(h("svg:rect", { class: `slot ${full ? "full" : ""}`, x: left + 8 + slot * (width + 2), y: top + 21, width, height: 8, rx: 1.5 }));
    }
  }
  return group;
}
