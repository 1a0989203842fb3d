// Controls of a live run: shown if the run allows them.
import { ask } from "./api.js";
import { clip, fill, h } from "./dom.js";

/** The buttons and hyperparameters that control a run. */
export class Controls {
  /** @param {string} run @param {boolean} allowed */
  constructor(run, allowed) {
    this.run = run;
    this.allowed = allowed;
    this.buttons = h("div.buttons");
    this.values = h("section", { hidden: true });
    this.drawn = "";
    if (!allowed) return;
    this.pause = h("button", { type: "button", "data-do": "pause", click: () => this.act(this.paused ? "resume" : "pause") }, "Pause");
    this.save = h("button", { type: "button", "data-do": "checkpoint", click: () => this.act("checkpoint") }, "Checkpoint now");
    this.stop = h("button.danger", { type: "button", "data-do": "stop", click: () => confirm("Stop the run and save a final checkpoint?") && this.act("stop") }, "Stop");
    this.said = h("span.soft", { role: "status" });
    fill(this.buttons, this.said, this.pause, this.save, this.stop);
  }

  /** @param {string} what @param {any} [body] */
  async act(what, body) {
    try {
      await ask(`runs/${this.run}/${what}`, { method: "POST", body });
      this.say("");
    } catch (error) {
      if (error.status === 428 && confirm(`${error.message.split(";")[0]}. Set it anyway?`)) return this.act(what, { ...body, confirm: true });
      this.say(error.message);
    }
  }

  /** @param {string} words */
  say(words) {
    this.said.textContent = words;
    clearTimeout(this.silence);
    this.silence = setTimeout(() => { this.said.textContent = ""; }, 8000);
  }

  /** @param {any} state */
  show(state) {
    if (!this.allowed) return;
    this.paused = state.status === "paused";
    this.pause.textContent = this.paused ? "Resume" : "Pause";
    this.pause.className = this.paused ? "primary" : "";
    const goesOn = ["running", "paused", "starting"].includes(state.status);
    this.pause.disabled = this.stop.disabled = !goesOn;
    this.save.hidden = state.checkpoint === null; // the run trains nothing
    this.save.disabled = !goesOn || state.checkpoint_under_way;
    const may = state.behaviors.map((each) => [each.name, each.hyperparameters]).filter(([, values]) => Object.keys(values ?? {}).length);
    const text = JSON.stringify(may);
    this.values.hidden = !may.length || !goesOn;
    if (text === this.drawn || this.values.contains(document.activeElement)) return;
    this.drawn = text;
    fill(this.values, h("h2", {}, "Hyperparameters", h("span.soft", { style: null }, "values at the start of their schedules; a change applies from the next update")), ...may.map(([behavior, values]) => this.form(behavior, values, may.length > 1)));
  }

  /** @param {string} behavior @param {Record<string, number>} values @param {boolean} several */
  form(behavior, values, several) {
    const inputs = Object.entries(values).map(([name, value]) => h("input", { name, value: String(value), inputmode: "decimal", autocomplete: "off", "data-behavior": behavior }));
    const submit = async (event) => {
      event.preventDefault();
      /** @type {any} */ (document.activeElement)?.blur();
      for (const input of inputs) {
        if (input.value === String(values[input.name])) continue;
        await this.act("hyperparameters", { behavior, name: input.name, value: Number(input.value) });
      }
      this.drawn = "";
    };
    return h("form.values", { submit }, several ? h("b", { title: behavior }, clip(behavior, 32)) : null, ...inputs.map((input) => h("label", {}, h("span.mono", {}, input.name), input)), h("button", {}, "Set"));
  }
}
