// Tables: behaviours, players, queues, processes.
import { bar, clip, duration, h, memory, percent, short, whole } from "./dom.js";
import { pressure } from "./graph.js";

/** Maximum length of a name, so that the numbers next to it fit on a phone. */
const NAME = matchMedia("(max-width: 600px)").matches ? 16 : 32;

/**
 * @param {string[]} heads A leading ">" marks a column of numbers.
 * @param {any[][]} rows
 */
function table(heads, rows) {
  const right = heads.map((head) => head.startsWith(">"));
  const cell = (tag, content, at) => h(`${tag}${right[at] ? ".n" : ""}`, {}, content ?? "–");
  return h("table", {}, h("thead", {}, h("tr", {}, ...heads.map((head, at) => cell("th", head.replace(">", ""), at)))), h("tbody", {}, ...rows.map((row) => h("tr", {}, ...row.map((content, at) => cell("td", content, at))))));
}

/** The behaviours and their progress. @param {any} state */
export function behaviorTable(state) {
  const rated = state.behaviors.some((each) => each.elo !== null);
  const heads = ["behaviour", ">reward", ">time left", ...(rated ? [">ELO"] : []), ">step", ">steps/s", ">lag", ">waiting", ">updates", "trainer"];
  const paused = (text) => (state.status === "paused" ? "paused" : text);
  const rows = state.behaviors.map((each) => [
    h("b", { title: each.name }, clip(each.name, NAME)),
    short(each.reward),
    ["ended", "failed"].includes(state.status) ? "–" : paused(duration(each.seconds_left)),
    ...(rated ? [whole(each.elo)] : []),
    h("div", { title: each.max_steps ? `of ${whole(each.max_steps)}` : null }, h("span", { "data-step": each.name }, whole(each.step)), each.max_steps ? bar(each.step / each.max_steps) : null),
    paused(whole(each.steps_per_s)),
    short(each.lag),
    h("span", { title: "Share of the time that actors wait for the next policy", "data-waits": each.name }, percent(each.policy_wait)),
    whole(each.updates),
    each.done ? `${each.trainer} · done` : (each.trainer ?? "none"),
  ]);
  return table(heads, rows);
}

/** All queues, with details that do not fit into the graph. @param {any} state */
export function queueTable(state) {
  const rows = state.edges.map((edge) => [
    h("span.mono", { title: edge.queue }, clip(edge.queue, 2 * NAME)),
    `${clip(edge.source[0], NAME)} → ${clip(edge.target[0], NAME)}`,
    `${edge.depth} / ${edge.capacity}`,
    whole(edge.high_water),
    h("div", {}, percent(edge.put_wait), bar(edge.put_wait, pressure(edge))),
    percent(edge.get_wait),
    state.status === "paused" ? "paused" : short(edge.rate),
  ]);
  return table(["queue", "between", ">depth", ">high water", ">producers wait", ">consumers wait", ">items/s"], rows);
}

/** The hosts' CPU and memory. @param {any} state */
export function hostTable(state) {
  const rows = state.hosts.map((host) => [
    h("b", { title: host.name }, clip(host.name, NAME)),
    host.role === "main" ? "main" : `${host.role.replace("_", " ")} · ${host.kind}`,
    host.pid ? h("span.mono", {}, host.pid) : "in main",
    host.usage ? h("div", {}, `${(100 * host.usage.cpu).toFixed(0)} %`, bar(host.usage.cpu)) : host.ended ? "ended" : "–",
    host.usage ? memory(host.usage.memory) : "–",
  ]);
  return table(["host", "role", "process", ">CPU (one core)", ">memory"], rows);
}

/** The learning team's opponents. @param {any} players */
export function playerTable(players) {
  const rows = players.opponents.map((each) => [
    h("span.mono", { title: each.id }, clip(each.id, 2 * NAME)),
    each.snapshot < 0 ? "the newest policy" : `snapshot ${each.snapshot}`,
  ]);
  const learns = rows.length ? `Team ${players.learning_team} is learning. Its opponents:` : "All teams are learning, and play with their newest policies.";
  return h("div", {}, h("p.soft", {}, learns), rows.length ? table(["opponent", "plays with"], rows) : "");
}
