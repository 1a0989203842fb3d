"""Ask a policy server for actions, using only Python's standard library: copy this file into your program.

    client = PolicyClient("http://localhost:8480")
    answer = client.act("Ball", {"vector": [[0.1, 0.2, 0.3]]})  # a row for each agent
    answer["continuous"], answer["discrete"]

    with client.session("Mind", agents=2) as session:  # for models with a memory
        session.act([[[0.1, 0.2], [0.3, 0.4]]], episode_start=[True, True])

`python client.py URL [TOKEN]` lists a server's models, and what each does if all its observations are 0. Use a client
in one thread only; its connection stays open between requests. docs/serving.md describes the API.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import quote, urlsplit

USUAL_URL = "http://localhost:8480"
FOREIGN = "a proxy or a different server answered, not a policy server"


class ServerRefused(Exception):
    """The server refused a request; the message says why.

    Attributes:
        status: the HTTP status; requests with status 503 and 409 may be tried again later.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class PolicyClient:
    """A client for one server.

    Args:
        url: the server's URL.
        token: the token that the server printed, if it is on another machine.
        timeout_s: seconds to wait for an answer; the server drops a request if its caller is gone.

    Raises:
        ValueError: if the URL is not valid.

    Raises of all methods:
        ServerRefused: if the server refuses the request.
        OSError, HTTPException: if the server can't be reached, or does not answer in time.
    """

    def __init__(self, url: str = USUAL_URL, token: str = "", timeout_s: float = 10.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ValueError(f"expected the address of a server, such as {USUAL_URL}, got {url!r}")
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._connection = kind(parts.netloc, timeout=timeout_s)
        self._path = parts.path.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def models(self) -> list[dict[str, Any]]:
        """Return the server's models: names, observations, actions, step."""
        models: list[dict[str, Any]] = self._call("GET", "/api/models")["models"]
        return models

    def act(
        self,
        model: str,
        observations: Mapping[str, Any] | Sequence[Any],
        masks: Any = None,
        deterministic: bool | None = None,
        session: str | None = None,
        episode_start: Any = None,
    ) -> dict[str, Any]:
        """Return n agents' `continuous` [n, …] and `discrete` [n, branches] actions; the model's `version`, `step`.

        Args:
            model: the model's name.
            observations: by name, or in the model's order: lists or arrays [n, *shape].
            masks: [n, sum of branches] true = allowed.
            deterministic: True for the most likely actions, False for samples; None for the server's default.
            session: the session's id.
            episode_start: [n] true where an agent's episode begins.
        """
        asked = {
            "observations": observations,
            "masks": masks,
            "deterministic": deterministic,
            "session": session,
            "episode_start": episode_start,
        }
        given = {key: value for key, value in asked.items() if value is not None}
        answer: dict[str, Any] = self._call("POST", f"/api/models/{quote(model, safe='')}/act", given)
        return answer

    def session(self, model: str, agents: int = 1) -> Session:
        """Open a session, which holds what the model remembers about agents. End it with `close`, or use `with`."""
        opened = self._call("POST", f"/api/models/{quote(model, safe='')}/sessions", {"agents": agents})
        return Session(self, model, opened["session"])

    def end_session(self, model: str, session: str) -> None:
        """End a session."""
        self._call("DELETE", f"/api/models/{quote(model, safe='')}/sessions/{quote(session, safe='')}")

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        self._connection.close()

    def _call(self, method: str, path: str, plain: Mapping[str, Any] | None = None) -> Any:
        body = None if plain is None else json.dumps(plain, default=_listed).encode()
        headers = {**self._headers, **({} if body is None else {"Content-Type": "application/json"})}
        # The server may have closed an idle connection. A session's request is not sent twice, as it might be processed
        # twice.
        may_retry = self._connection.sock is not None and "session" not in (plain or {})
        try:
            try:
                self._connection.request(method, self._path + path, body, headers)
                answer = self._connection.getresponse()
            except (ConnectionError, HTTPException):
                self._connection.close()
                if not may_retry:
                    raise
                self._connection.request(method, self._path + path, body, headers)
                answer = self._connection.getresponse()
            content = answer.read()
        except (OSError, HTTPException):
            self._connection.close()
            raise
        try:
            found = json.loads(content)
            refusal = found["error"] if answer.status >= 400 else None
        except (ValueError, LookupError, TypeError):
            raise ServerRefused(answer.status, f"{answer.reason}; {FOREIGN}") from None
        if refusal is not None:
            raise ServerRefused(answer.status, refusal)
        return found


class Session:
    """A session with a model, usable in a `with` statement."""

    def __init__(self, client: PolicyClient, model: str, key: str) -> None:
        self._client = client
        self._model = model
        self.key = key

    def act(self, observations: Any, **more: Any) -> dict[str, Any]:
        """Return the agents' actions; see `PolicyClient.act`."""
        return self._client.act(self._model, observations, session=self.key, **more)

    def close(self) -> None:
        """End the session."""
        self._client.end_session(self._model, self.key)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.close()
        except (ServerRefused, OSError, HTTPException):
            if kind is None:  # otherwise the first error is the one to report
                raise


def _listed(value: Any) -> Any:
    """Return a NumPy array or number as lists or a plain number."""
    if not hasattr(value, "tolist"):
        raise TypeError(f"a {type(value).__name__} can't be sent; expected lists, arrays or numbers")
    return value.tolist()


def zeros(shape: Sequence[int]) -> Any:
    """Return nested lists of zeros."""
    return [zeros(shape[1:]) for _ in range(shape[0])] if shape else 0


def main() -> None:
    """Print a server's models, and what they do."""
    client = PolicyClient(*sys.argv[1:3])
    for model in client.models():
        observed = {each["name"]: zeros([1, *each["shape"]]) for each in model["observations"]}
        with client.session(model["name"]) as session:
            answer = session.act(observed, deterministic=True)
        print(f"{model['name']}, step {model['step']}: {answer['continuous'][0]} {answer['discrete'][0]}")
    client.close()


if __name__ == "__main__":
    try:
        main()
    except (ServerRefused, ValueError, OSError, HTTPException) as error:
        sys.exit(f"{[*sys.argv[1:], USUAL_URL][0]}: {error}")
