// Tables: behaviours, players, queues, processes.
import { bar, clip, duration, h, memory, percent, short, whole } from "./dom.js";
import { pressure } from "./graph.js";

/** Characters of a name, so that the numbers beside it can be seen on a phone, too. */
const NAME = matchMedia("(max-width: 600px)").matches ? 16 : 32;

/**
 * @param {string[]} heads Those with a leading ">" are of numbers.
 * @param {any[][]} rows
 */
function table(heads, rows) {
  const right = heads.map((head) => head.startsWith(">"));
  const cell = (tag, content, at) => h(`${tag}${right[at] ? ".n" : ""}`, {}, content ?? "–");
  return h("table", {}, h("thead", {}, h("tr", {}, ...heads.map((head, at) => cell("th", head.replace(">", ""), at)))), h("tbody", {}, ...rows.map((row) => h("tr", {}, ...row.map((content, at) => cell("td", content, at))))));
}

/** Who learns, and how far. @param {any} state */
export function behaviorTable(state) {
  const rated = state.behaviors.some((each) => each.elo !== null);
  const heads = ["behaviour", "trainer", ">step", "", ">steps/s", ">reward", ...(rated ? [">rating"] : []), ">lag", ">waits", ">updates", ">left"];
  const rows = state.behaviors.map((each) => [
    h("b", { title: each.name }, clip(each.name, NAME)),
    each.done ? `${each.trainer} · done` : (each.trainer ?? "plays"),
    h("span", { "data-step": each.name }, whole(each.step)),
    h("div", { title: `of ${whole(each.max_steps)}` }, bar(each.step / each.max_steps)),
    whole(each.steps_per_s),
    short(each.reward),
    ...(rated ? [whole(each.elo)] : []),
    short(each.lag),
    h("span", { title: "Time in which actors stand still until the next policy", "data-waits": each.name }, percent(each.policy_wait)),
    whole(each.updates),
    duration(["ended", "failed"].includes(state.status) ? null : each.seconds_left),
  ]);
  return table(heads, rows);
}

/** All queues, with what the graph has no room for. @param {any} state */
export function queueTable(state) {
  const rows = state.edges.map((edge) => [
    h("span.mono", { title: edge.queue }, clip(edge.queue, 2 * NAME)),
    `${clip(edge.source[0], NAME)} → ${clip(edge.target[0], NAME)}`,
    `${edge.depth} / ${edge.capacity}`,
    whole(edge.high_water),
    h("div", {}, bar(edge.put_wait, pressure(edge))),
    percent(edge.put_wait),
    percent(edge.get_wait),
    short(edge.rate),
  ]);
  return table(["queue", "", ">depth", ">high water", "producers wait", ">", ">consumers wait", ">items/s"], rows);
}

/** CPU and memory. @param {any} state */
export function hostTable(state) {
  const rows = state.hosts.map((host) => [
    h("b", { title: host.name }, clip(host.name, NAME)),
    host.role === "main" ? "main" : `${host.role.replace("_", " ")} · ${host.kind}`,
    host.pid ? h("span.mono", {}, host.pid) : "in main",
    host.usage ? h("div", {}, bar(host.usage.cpu)) : "",
    host.usage ? `${(100 * host.usage.cpu).toFixed(0)} %` : host.ended ? "ended" : "–",
    host.usage ? memory(host.usage.memory) : "–",
  ]);
  return table(["host", "", "process", "CPU (one core)", ">", ">memory"], rows);
}

/** Who plays whom. @param {any} players */
export function playerTable(players) {
  const rows = players.opponents.map((each) => [
    h("span.mono", { title: each.id }, clip(each.id, 2 * NAME)),
    each.snapshot < 0 ? "the newest policy" : `snapshot ${each.snapshot}`,
  ]);
  return h("div", {}, h("p.soft", {}, `Team ${players.learning_team} learns and plays against:`), table(["opponent", "plays with"], rows));
}
