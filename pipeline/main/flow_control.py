"""Flow control in main: the windows of behaviours, the actors' credits, and a warning where a trainer gets no steps.

`pipeline/control/credits.py` is the account, `policy_lag` the size of its windows, `starvation` the warning. Here is
which message changes what in them; each change may free credits, which go to the actors that have asked for some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace.pipeline.common.graph import teacher_of
from headrace.pipeline.control.credits import CreditLedger, CreditRequest, Grant
from headrace.pipeline.control.messages import CreditsReturned, LearnerReady
from headrace.pipeline.main.broadcast import Broadcaster
from headrace.pipeline.main.policy_lag import PolicyLags
from headrace.pipeline.main.run_plan import RunPlan
from headrace.pipeline.main.starvation import StarvationWatch
from headrace.stages.trainer.report import TrainerReport


class FlowControl:
    """Keeps the account of all credits, and sends grants.

    Args:
        plan: the run.
        broadcaster: sends grants to actors.
        at_rest: called before grants of a deterministic run are sent, while all stand still.

    Attributes:
        ledger: the account.
    """

    def __init__(self, plan: RunPlan, broadcaster: Broadcaster, at_rest: Callable[[], None]) -> None:
        self.ledger = CreditLedger(at_rest=plan.deterministic)
        self._plan = plan
        self._broadcaster = broadcaster
        self._at_rest = at_rest
        self._lags = PolicyLags(plan.config.pipeline)
        self._starvation = StarvationWatch()
        self._returned: dict[tuple[str, str, int], int] = {}

    def sources_removed(self, sources: Iterable[int]) -> None:
        """An actor has ended for good: its credits are written off, whatever sources it has been."""
        for source in sources:
            self._grant(self.ledger.remove_source(source))

    def learner_ready(self, message: LearnerReady) -> None:
        """A trainer can take steps: open its window, without a bound where no policy of its own makes them."""
        behavior, rows = message.behavior, message.rows_per_update
        self._starvation.add_trainer(behavior, rows)
        if self._plan.replay_edge or teacher_of(self._plan.config, behavior) is not None:
            self.ledger.open_unbounded(behavior)
        else:
            lag = self._lags.first(behavior, rows, message.any_age, message.corrects_age)
            self.ledger.open_window(behavior, rows, lag, message.held_rows)
        self.resume()

    def requested(self, request: CreditRequest) -> None:
        """An actor asks for credits, or gives some back."""
        self._grant(self.ledger.request(request))

    def returned(self, message: CreditsReturned) -> None:
        """A stage gives back the credits of steps that the trainer does not get."""
        key = (message.by, message.behavior, message.source)
        self._starvation.kept_back(message.by, message.behavior, message.total - self._returned.get(key, 0))
        self._returned[key] = message.total
        self._grant(self.ledger.returned(*key, message.total))

    def trainer_reported(self, report: TrainerReport) -> None:
        """A trainer has learned, or gives credits back."""
        self._starvation.fed(report.behavior, report.step, report.done)
        grants = self.ledger.learned(report.behavior, report.version, report.held, report.returned, report.arrived)
        lag = self._lags.measured(report.behavior, report.collecting_s, report.learning_s)
        if lag is not None:
            grants += self.ledger.resize_window(report.behavior, lag)
        self._grant(grants)

    def pause(self) -> None:
        """Grant nothing until `resume`."""
        self.ledger.pause()

    def resume(self) -> None:
        """Grant again."""
        self._grant(self.ledger.resume())

    def _grant(self, grants: list[Grant]) -> None:
        if grants and self._plan.deterministic:
            self._at_rest()
        self._broadcaster.grant(grants)
