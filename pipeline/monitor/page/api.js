// Calls to the server, with the token from the address, and a stream that reconnects.

const address = new URL(location.href);
const secret = address.searchParams.get("token");
if (secret) {
  sessionStorage.setItem("token", secret);
  address.searchParams.delete("token");
  history.replaceState(null, "", address); // keeps the token out of bookmarks and screenshots
}

/** @returns {string} */
const token = () => sessionStorage.getItem("token") ?? "";
/** The token as a query, for requests whose headers a browser can't set. */
const query = () => (token() ? `?token=${encodeURIComponent(token())}` : "");

/**
 * Call the server.
 * @param {string} path Such as "runs".
 * @param {{method?: string, body?: any}} [options] A body is sent as JSON.
 * @returns {Promise<any>} The response; rejects with an Error that has the message and the status.
 */
export async function ask(path, { method = "GET", body } = {}) {
  const headers = /** @type {Record<string, string>} */ ({});
  if (token()) headers.Authorization = `Bearer ${token()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const answer = await fetch(`api/${path}`, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  const plain = await answer.json().catch(() => ({ error: `${answer.status} ${answer.statusText}` }));
  if (!answer.ok) throw Object.assign(new Error(plain.error ?? answer.statusText), { status: answer.status });
  return plain;
}

/**
 * Open a run's socket.
 * @param {string} run
 * @param {string} what Such as "watch".
 * @returns {WebSocket}
 */
export function openSocket(run, what) {
  const url = new URL(`api/runs/${run}/${what}`, location.href);
  url.protocol = url.protocol.replace("http", "ws");
  url.hash = "";
  url.search = query();
  const socket = new WebSocket(url);
  socket.binaryType = "arraybuffer";
  return socket;
}

/**
 * Follow a run's stream; the browser reconnects by itself, with the number of the last event that it received.
 * @param {string} run
 * @param {(event: any) => void} onEvent
 * @param {(connected: boolean) => void} onConnection
 * @returns {() => void} Call it to stop following.
 */
export function follow(run, onEvent, onConnection) {
  let source = /** @type {EventSource|null} */ (null);
  let again = 0;
  const open = () => {
    source = new EventSource(`api/runs/${run}/stream${query()}`);
    source.onmessage = (message) => {
      onConnection(true);
      onEvent(JSON.parse(message.data));
    };
    source.onerror = () => {
      onConnection(false);
      if (source?.readyState === EventSource.CLOSED) again = window.setTimeout(open, 3000); // the server refused, and the browser does not retry by itself
    };
  };
  open();
  return () => {
    clearTimeout(again);
    source?.close();
  };
}
