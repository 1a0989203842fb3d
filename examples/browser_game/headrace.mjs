// A client of the open protocol (docs/protocol.md) for games in JavaScript: tcp:// under Node, ws:// in browsers.
//
// serve(url, game) plays until the trainer ends the run. The game has
//   hello                        its announcement: {game, behaviors}
//   begin(parameters, seed)      restarts the game; returns the first state: {agents, statistics}
//   act(actions, parameters)     applies the agents' actions; returns the next state, or a promise of it

export async function serve(url, game) {
  const link = await (url.startsWith("ws") ? webSocket(url) : tcp(url));
  link.send({ type: "hello", protocol: 1, ...game.hello });
  for await (const message of link.messages) {
    if (message.type === "close") break;
    if (message.type === "error") throw new Error(`the trainer says: ${message.message}`);
    if (message.type === "reset") {
      link.send({ type: "state", number: message.number, ...(await game.begin(message.parameters, message.seed)) });
    } else if (message.type === "act") {
      link.send({ type: "state", number: message.number, ...(await game.act(message.actions, message.parameters)) });
    } // a welcome needs no answer
  }
  link.close();
}

async function webSocket(url) {
  const socket = new WebSocket(url);
  const inbox = new Inbox();
  socket.onmessage = (event) => inbox.put(JSON.parse(event.data));
  socket.onclose = () => inbox.end();
  await new Promise((resolve, reject) => {
    socket.onopen = resolve;
    socket.onerror = () => reject(new Error(`no trainer answers at ${url}`));
  });
  return { messages: inbox, send: (message) => socket.send(JSON.stringify(message)), close: () => socket.close() };
}

async function tcp(url) {
  const { connect } = await import("node:net");
  const { hostname, port } = new URL(url.replace("tcp:", "http:"));
  const socket = connect(Number(port), hostname).setNoDelay(true);
  const inbox = new Inbox();
  let unread = Buffer.alloc(0);
  socket.on("data", (data) => {
    unread = unread.length ? Buffer.concat([unread, data]) : data;
    while (unread.length >= 4 && unread.length >= 4 + unread.readUInt32LE(0)) {
      const end = 4 + unread.readUInt32LE(0);
      inbox.put(JSON.parse(unread.toString("utf8", 4, end)));
      unread = unread.subarray(end);
    }
  });
  socket.on("close", () => inbox.end());
  await new Promise((resolve, reject) => {
    socket.once("connect", resolve);
    socket.once("error", reject);
  });
  socket.on("error", () => inbox.end());
  const send = (message) => {
    const text = Buffer.from(JSON.stringify(message));
    const header = Buffer.alloc(4);
    header.writeUInt32LE(text.length);
    socket.write(Buffer.concat([header, text]));
  };
  return { messages: inbox, send, close: () => socket.destroy() };
}

// Messages in order of arrival, for `for await`.
class Inbox {
  constructor() {
    this.waiting = [];
    this.over = false;
    this.wake = () => {};
  }

  put(message) {
    this.waiting.push(message);
    this.wake();
  }

  end() {
    this.over = true;
    this.wake();
  }

  async *[Symbol.asyncIterator]() {
    for (;;) {
      while (this.waiting.length) yield this.waiting.shift();
      if (this.over) return;
      await new Promise((resolve) => (this.wake = resolve));
    }
  }
}
