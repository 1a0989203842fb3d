"""What a page asks of a run, live or finished."""

from __future__ import annotations

from typing import Any, Protocol


class ShownRun(Protocol):
    """A run on the page. All calls come from the server's thread."""

    @property
    def name(self) -> str:
        """The run id."""
        ...

    @property
    def live(self) -> bool:
        """True if it goes on."""
        ...

    def state(self) -> dict[str, Any]:
        """The newest state; see `state.state_of`."""
        ...

    def curves(self) -> dict[str, Any]:
        """All curves, by category and name."""
        ...

    def leagues(self) -> list[dict[str, Any]]:
        """The leagues, as `league_matrix` has them."""
        ...

    def configuration(self) -> str:
        """The resolved configuration, as YAML."""
        ...

    def log(self) -> list[dict[str, Any]]:
        """The newest lines of the log."""
        ...
