// Courts of the game as agents of the open protocol: their announcement, states and actions.

import { Catch } from "./catch.mjs";

const BEHAVIOR = "Catcher";

export class Courts {
  // Awaits `pause` before each state, so that a page can show the game.
  constructor(count, pause = null) {
    this.count = count;
    this.pause = pause;
    this.hello = {
      game: "catch",
      behaviors: {
        [BEHAVIOR]: {
          observations: [{ name: "court", shape: [3] }], // paddle, distance of the fruit to the right, height of the fruit
          actions: { discrete: { move: 3 } },
        },
      },
    };
  }

  begin(parameters, seed) {
    const random = seed === undefined ? Math.random : seeded(seed);
    this.courts = Array.from({ length: this.count }, () => new Catch(random));
    this.told(parameters);
    return { agents: { [BEHAVIOR]: { deciding: this.deciding(this.courts.map(() => 0)) } } };
  }

  async act(actions, parameters) {
    this.told(parameters);
    const { ids, discrete } = actions[BEHAVIOR];
    const rewards = [];
    const ended = { ids: [], observations: [[]], rewards: [] };
    ids.forEach((id, row) => {
      const court = this.courts[id];
      const [reward, over] = court.step(discrete[row][0] - 1);
      rewards[id] = over ? 0 : reward;
      if (over) {
        ended.ids.push(id);
        ended.observations[0].push(court.observe());
        ended.rewards.push(reward);
        court.begin();
      }
    });
    if (this.pause) await this.pause();
    const part = { deciding: this.deciding(rewards) };
    if (ended.ids.length) part.ended = ended;
    return { agents: { [BEHAVIOR]: part } };
  }

  deciding(rewards) {
    return { ids: this.courts.map((_, id) => id), observations: [this.courts.map((each) => each.observe())], rewards };
  }

  told(parameters) {
    if (parameters?.speed !== undefined) this.courts.forEach((each) => (each.speed = parameters.speed));
  }
}

// Mulberry32, as Math.random takes no seed.
function seeded(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}
