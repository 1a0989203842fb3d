// The page: the runs that it shows, the banner above them, and its colours.
import { ask } from "./api.js";
import { Curves } from "./curves.js";
import { fill, h } from "./dom.js";
import { Run } from "./run.js";

const $ = (id) => document.getElementById(id);
const SAID = {
  lost: ["bad", "The run is no longer responding: it was killed, or the connection was lost. Reconnecting…"],
  ended: ["good", "The run has ended. This page shows its last state."],
  failed: ["bad", "The run failed"],
};
/** @type {Run[]} */
let runs = [];
let curves = /** @type {any} */ (null);

/** @param {string} status @param {string} message */
function tell(status, message) {
  const [level, words] = SAID[status] ?? ["", ""];
  const banner = $("banner");
  banner.hidden = !words;
  banner.className = level;
  banner.textContent = status === "failed" && message ? `${words}: ${message}` : words;
}

/** @param {any} listed The server's runs. @param {string[]} ids The runs to show. */
async function show(listed, ids) {
  for (const run of runs) run.end();
  runs = ids.map((id) => new Run(listed.runs.find((run) => run.id === id), listed, tell, curves));
  const several = runs.length > 1;
  $("runs").className = several ? "two" : "";
  if (several) fill($("runs"), curves.section, ...runs.map((run) => run.element));
  else runs[0].wiring.after(curves.section), fill($("runs"), runs[0].element);
  document.title = `${several && listed.runs.length > 3 ? `${listed.runs.length} runs` : listed.runs.map((run) => run.name).join(", ")} · Headrace`;
  await Promise.all(runs.map((run) => run.start()));
}

/** Show the links of the menu that lead somewhere: each to the first visible section of its kind. */
function link() {
  for (const each of $("nav").children) {
    const sections = [...document.querySelectorAll(`[data-section="${each.hash.slice(1)}"]`)], shown = sections.find((section) => !section.hidden);
    for (const section of sections) section.id = section === shown ? section.dataset.section : "";
    each.hidden = !shown;
  }
}
new MutationObserver(link).observe($("runs"), { childList: true, subtree: true, attributeFilter: ["hidden"] });

/** Let the user pick two runs if there are more. @param {any} listed */
function pick(listed) {
  if (listed.runs.length < 3) return;
  const picks = [0, 1].map((at) => h("select", { "aria-label": `Run ${at + 1}` }, ...listed.runs.map((run, n) => h("option", { value: run.id, selected: n === at }, run.name))));
  for (const each of picks) each.addEventListener("change", () => show(listed, picks.map((other) => other.value)));
  fill($("pick"), ...picks);
}

/** @param {string} theme */
function paint(theme) {
  document.documentElement.dataset.theme = theme;
  curves?.build();
  for (const run of runs) run.recolour();
}

const system = matchMedia("(prefers-color-scheme: dark)");
const chosen = () => localStorage.getItem("theme") ?? (system.matches ? "dark" : "light");
paint(chosen());
system.addEventListener("change", () => paint(chosen()));
$("theme").addEventListener("click", () => {
  localStorage.setItem("theme", chosen() === "dark" ? "light" : "dark");
  paint(chosen());
});
let width = innerWidth;
addEventListener("resize", () => {
  if (Math.abs(innerWidth - width) > 20) {
    curves?.redraw();
    for (const run of runs) run.recolour();
  }
  width = innerWidth;
});
addEventListener("beforeprint", () => {
  paint("light");
  curves?.drawRest({ timeRemaining: () => 1 });
});
addEventListener("afterprint", () => paint(chosen()));

try {
  const listed = await ask("runs");
  curves = new Curves(listed.runs);
  pick(listed);
  const ids = listed.runs.map((run) => run.id);
  await Promise.all([show(listed, ids.slice(0, 2)), ...ids.map((id) => curves.read(id))]);
} catch (error) {
  tell("failed", "");
  $("banner").textContent = `Can't load the page: ${error.message}`;
}
