// Requests actions from a policy server, in a browser or in Node (18 or later): copy this file into your program.
//
//   import { PolicyClient } from "./client.mjs";
//   const client = new PolicyClient("http://localhost:8480");
//   const { continuous, discrete } = await client.act("Ball", { vector: [[0.1, 0.2, 0.3]] }); // a row for each agent
//
//   const session = await client.session("Mind", 2); // for models with a memory
//   await session.act([[[0.1, 0.2], [0.3, 0.4]]], { episode_start: [true, true] });
//   await session.close();
//
// `node client.mjs URL [TOKEN]` lists the models of a server, and the action of each for observations of zeros. The server must allow a page of
// another origin: `run-pipeline --serve … --allow-origin https://game.example`. docs/serving.md describes the API.

/** The server has refused a request; `status` is the HTTP status: for 503 and 409, you can retry later. */
export class ServerRefused extends Error {
  constructor(status, message) {
    super(`${status}: ${message}`);
    this.name = "ServerRefused";
    this.status = status;
  }
}

/** A client of one server. `timeoutMs`: the server drops a request if its caller is gone. */
export class PolicyClient {
  #url;
  #headers;
  #timeoutMs;

  constructor(url = "http://localhost:8480", { token = "", timeoutMs = 10000 } = {}) {
    this.#url = url.replace(/\/+$/, "");
    this.#headers = token ? { Authorization: `Bearer ${token}` } : {};
    this.#timeoutMs = timeoutMs;
  }

  /** The models: names, observations, actions, step. */
  async models() {
    return (await this.#call("GET", "/api/models")).models;
  }

  /**
   * The actions of n agents: `continuous` [n, …], `discrete` [n, branches], `version` and `step` of the model.
   * `observations`: by name, or in the model's order: arrays [n, …shape]; an agent's row may be a typed array.
   * `options`: masks, deterministic, session, episode_start.
   */
  async act(model, observations, options = {}) {
    return this.#call("POST", `/api/models/${encodeURIComponent(model)}/act`, { observations, ...options });
  }

  /** Open a session: the model's memory of agents, until the session is closed. */
  async session(model, agents = 1) {
    const path = `/api/models/${encodeURIComponent(model)}/sessions`;
    const { session } = await this.#call("POST", path, { agents });
    return {
      id: session,
      act: (observations, options = {}) => this.act(model, observations, { ...options, session }),
      close: () => this.#call("DELETE", `${path}/${encodeURIComponent(session)}`),
    };
  }

  async #call(method, path, plain) {
    const options = { method, headers: { ...this.#headers }, signal: AbortSignal.timeout(this.#timeoutMs) };
    if (plain !== undefined) {
      options.headers["Content-Type"] = "application/json";
      options.body = JSON.stringify(plain, (_, value) => (ArrayBuffer.isView(value) ? Array.from(value) : value));
    }
    const answer = await fetch(this.#url + path, options).catch((error) => {
      if (error.name === "TimeoutError") throw error;
      throw new Error(`${this.#url} can't be reached: ${error.cause?.message ?? error.message}`, { cause: error });
    });
    const text = await answer.text();
    let found = null;
    try {
      found = JSON.parse(text);
    } catch {}
    if (answer.ok && found !== null) return found;
    const foreign = "a proxy or a different server answered, not a policy server";
    throw new ServerRefused(answer.status, found?.error ?? `${answer.statusText}; ${foreign}`);
  }
}

const zeros = (shape) => (shape.length ? Array.from({ length: shape[0] }, () => zeros(shape.slice(1))) : 0);

async function main(url, token) {
  const client = new PolicyClient(url, { token });
  for (const model of await client.models()) {
    const observed = Object.fromEntries(model.observations.map((each) => [each.name, zeros([1, ...each.shape])]));
    const session = await client.session(model.name);
    const answer = await session.act(observed, { deterministic: true });
    await session.close();
    console.log(`${model.name}, step ${model.step}:`, answer.continuous[0], answer.discrete[0]);
  }
}

// As a program; the address encodes a space or an umlaut in a path.
if (globalThis.process?.argv?.[1] && decodeURIComponent(import.meta.url).endsWith(process.argv[1].replaceAll("\\", "/"))) {
  await main(process.argv[2], process.argv[3]).catch((error) => {
    console.error(error.message);
    process.exitCode = 1;
  });
}
