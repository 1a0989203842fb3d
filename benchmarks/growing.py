"""What breaks first with 1, 100 and 10,000 actors: a simulation in discrete events, fed with costs measured here.

    python benchmarks/growing.py                            the tables of docs/growing.md
    python benchmarks/growing.py --picture docs/growing.svg
    python benchmarks/growing.py --check                    only the check against cases worked out by hand

Stations are servers with one queue each: every actor, main (credits, policies, signs of life), the learner's network
link, main's network link, the learner. Credits, their parts, the bound of each actor's queue, the versions that grants
name and whole ticks are as in `pipeline/control/credits.py` and `stages/actor/credit_gate.py`. Left out is that a grant
waits for steps that others would leave behind: the lag here is that of a window alone. Why events: formulae of queueing
theory bound the throughput by the busiest station as well, but a window of credits that is granted in parts, returned
all at once after an update and overshot by whole ticks has no closed form, and the lag follows from who waits for whom.
`benchmarks/growing_costs.py` measures the costs.
"""

from __future__ import annotations

import argparse
import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import numpy as np

MICRO = 1e-6


@dataclass(frozen=True)
class Case:
    """One size. Times in seconds, sizes in bytes.

    Attributes:
        actors: how many.
        agents: rows that an actor makes in a tick.
        tick_s: time of a tick: environment, acting, agent processor.
        update_rows: rows of an update.
        lag: `max_policy_lag`.
        update_row_s: the update, per row.
        intake_batch_s: the learner's work for a batch that arrives.
        message_s: main's work for a message to or from an actor, a policy included.
        messages: messages of an actor in an update that are not credits or policies: statistics, episodes.
        alive_s: one sign of life in this time from each who speaks to main; 0: none.
        report_s: main's work for an update that does not depend on the actors.
        row_bytes: a row on its way.
        policy_bytes: a policy.
        link: bytes a second of a node's network link; 0: all on one machine.
        per_node: actors of a node.
        per_speaker: actors for which one speaks to main: 1 (more is not built).
    """

    actors: int
    agents: int
    tick_s: float
    update_rows: int
    lag: int
    update_row_s: float
    intake_batch_s: float = 0.0
    message_s: float = 0.0
    messages: int = 0
    alive_s: float = 0.0
    report_s: float = 0.0
    row_bytes: int = 0
    policy_bytes: int = 0
    link: float = 0.0
    per_node: int = 32
    per_speaker: int = 1
    maxlen: int = 4

    @property
    def nodes(self) -> int:
        """Nodes with actors."""
        return -(-self.actors // self.per_node)

    @property
    def speakers(self) -> int:
        """Those who speak to main."""
        return -(-self.actors // self.per_speaker)


class Server:
    """One at a time, in the order of arrival; how long it is busy, and how long those who come are with it."""

    def __init__(self) -> None:
        self.free_at = self.busy = self.stays = 0.0

    def serve(self, now: float, service: float) -> float:
        """Time at which something that arrives now and needs `service` is done."""
        self.free_at = max(now, self.free_at) + service
        self.busy += service
        self.stays += self.free_at - now
        return self.free_at


@dataclass
class Actor:
    """What an actor knows of itself."""

    made: int = 0
    cap: int = 0
    ask_at: int = 0
    held: int = 0
    first_version: int = 0
    version: int = 0
    needs: int = 0
    asked: bool = False
    on_way: int = 0
    """Batches that were emitted and not taken."""
    stepping: bool = False


@dataclass
class Outcome:
    """What came of a case."""

    case: Case
    steps_per_s: float
    lag: float
    worst_lag: int
    shares: dict[str, float]
    """By station: how much of the time it is busy."""
    queues: dict[str, float]
    """By station: how many jobs are there on average (Little's law)."""
    rates: dict[str, float] = field(default_factory=dict)
    """Bytes a second, by what."""

    @property
    def busiest(self) -> str:
        """The station with the least time to spare: the first bottleneck."""
        return max(self.shares, key=lambda name: self.shares[name])


class Simulation:
    """Plays a case until the learner has made a number of updates."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.chunk = -(-case.update_rows // case.actors)
        self.batch = max(1, case.update_rows // (4 * case.actors))
        self.window = (case.lag + 1) * case.update_rows
        self.actors = [Actor() for _ in range(case.actors)]
        self.main, self.link_in, self.link_out = Server(), Server(), Server()
        self.now, self.events, self.order = 0.0, list[tuple[float, int, Callable[[], None]]](), count()
        self.waiting: deque[int] = deque()
        self.caps = [0] * case.actors
        self.outstanding = 0
        self.inbox: deque[tuple[int, int, int]] = deque()
        self.rows: deque[tuple[int, int, int]] = deque()
        """What the learner holds: rows, their source, the version that made them."""
        self.have = self.version = 0
        self.learning = False
        self.learner_busy = self.actor_busy = self.inbox_stays = 0.0
        self.ages: list[tuple[int, int]] = []
        self.ends: list[float] = []
        self.learned = 0

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Let something happen at a time."""
        heapq.heappush(self.events, (when, next(self.order), what))

    def play(self, updates: int) -> None:
        """Play until the learner has made so many updates."""
        if self.case.alive_s:
            self.at(self.case.alive_s, self.signs_of_life)
        for number in range(self.case.actors):
            self.ask(number)
        while self.version < updates and self.events:
            self.now, _, what = heapq.heappop(self.events)
            what()

    # Main. -----------------------------------------------------------------------------------------------------------

    def share(self) -> float:
        """Part of a message that is an actor's, where a node speaks for all of its own."""
        return self.case.speakers / self.case.actors

    def signs_of_life(self) -> None:
        """Main hears from all that speak to it, and again when it has listened to them."""
        self.main.serve(self.now, self.case.speakers * self.case.message_s)
        self.at(max(self.now + self.case.alive_s, self.main.free_at), self.signs_of_life)

    def ask(self, number: int) -> None:
        """An actor asks main for credits."""
        self.actors[number].asked = True

        def arrived() -> None:
            self.waiting.append(number)
            self.grant()

        self.at(self.main.serve(self.now, self.case.message_s * self.share()), arrived)

    def grant(self) -> None:
        """Main grants what is left of the window, in the order of requests."""
        while self.waiting and self.outstanding < self.window:
            number = self.waiting.popleft()
            self.caps[number] += (amount := min(self.chunk, self.window - self.outstanding))
            self.outstanding += amount
            done = self.main.serve(self.now, self.case.message_s * self.share())
            self.at(done, self.granting(number, self.caps[number], self.version))

    def granting(self, number: int, cap: int, version: int) -> Callable[[], None]:
        """What a grant does when it arrives."""

        def granted() -> None:
            actor = self.actors[number]
            actor.asked = False
            actor.ask_at, actor.cap, actor.needs = (actor.cap + cap) // 2, max(cap, actor.cap), version
            self.go_on(number)

        return granted

    def publish(self, returned: dict[int, int]) -> None:
        """An update is made: its policy to all actors, its credits to the ledger."""
        case = self.case
        self.main.serve(self.now, case.report_s + case.messages * case.message_s * case.speakers)
        for number in range(case.actors):
            done = self.main.serve(self.now, case.message_s * self.share())
            if case.link and number % case.per_node == 0:  # once for each node
                self.link_out.serve(done, case.policy_bytes / case.link)
            self.at(max(done, self.link_out.free_at), self.policy(number, self.version))
        for rows in returned.values():
            self.outstanding -= rows
        self.grant()

    def policy(self, number: int, version: int) -> Callable[[], None]:
        """What a policy does when it arrives."""

        def arrived() -> None:
            self.actors[number].version = max(version, self.actors[number].version)
            self.go_on(number)

        return arrived

    # Actors. ---------------------------------------------------------------------------------------------------------

    def go_on(self, number: int) -> None:
        """Let an actor step up to its next batch or its cap, if it may."""
        actor = self.actors[number]
        if actor.stepping or actor.version < actor.needs or actor.on_way >= self.case.maxlen:
            return
        if actor.made >= actor.cap:
            if actor.held:
                self.emit(number)
            if not actor.asked:
                self.ask(number)
            return
        if not actor.asked and actor.made >= actor.ask_at:
            self.ask(number)
        if not actor.held:
            actor.first_version = actor.version
        until = min(self.batch - actor.held, actor.cap - actor.made)
        ticks = max(1, -(-until // self.case.agents))
        actor.stepping = True
        self.actor_busy += ticks * self.case.tick_s

        def stepped() -> None:
            actor.stepping = False
            rows = ticks * self.case.agents
            over = max(0, actor.made + rows - max(actor.cap, actor.made))
            actor.made += rows
            actor.held += rows
            if over:  # a tick is never cut: these come on top
                self.caps[number] += over
                self.outstanding += over
                actor.cap += over
            if actor.held >= self.batch:
                self.emit(number)
            self.go_on(number)

        self.at(self.now + ticks * self.case.tick_s, stepped)

    def emit(self, number: int) -> None:
        """An actor's batch leaves for the learner."""
        actor = self.actors[number]
        rows, version = actor.held, actor.first_version
        actor.held = 0
        actor.on_way += 1
        took = rows * self.case.row_bytes / self.case.link if self.case.link else 0.0

        def arrived() -> None:
            self.inbox.append((rows, number, version))
            self.take()

        self.at(self.link_in.serve(self.now, took), arrived)

    # The learner. ----------------------------------------------------------------------------------------------------

    def take(self) -> None:
        """The learner takes the next batch, and learns if it has enough."""
        if self.learning or not self.inbox:
            return
        rows, number, version = self.inbox.popleft()
        self.actors[number].on_way -= 1
        self.rows.append((rows, number, version))
        self.have += rows
        self.learning = True
        work, then = self.case.intake_batch_s, self.taken
        if self.have >= self.case.update_rows:
            work, then = work + self.case.update_rows * self.case.update_row_s, self.updated
        self.learner_busy += work
        self.at(self.now + work, then)
        self.go_on(number)

    def taken(self) -> None:
        """A batch is taken in."""
        self.learning = False
        self.take()

    def updated(self) -> None:
        """An update is made."""
        left, returned = self.case.update_rows, dict[int, int]()
        while left:
            rows, number, version = self.rows.popleft()
            used = min(rows, left)
            if used < rows:
                self.rows.appendleft((rows - used, number, version))
            left -= used
            returned[number] = returned.get(number, 0) + used
            self.ages.append((self.version - version, used))
        self.have -= self.case.update_rows
        self.version += 1
        self.ends.append(self.now)
        self.learned += self.case.update_rows
        self.publish(returned)
        self.taken()


def simulate(case: Case, updates: int = 12) -> Outcome:
    """Play a case; the first quarter of its updates is left out of rate and lag."""
    world = Simulation(case)
    world.play(updates)
    if not world.ends:
        raise ValueError(f"no update in {world.now:.0f} s: {case}")
    first = updates // 4
    span, total = world.ends[-1] - world.ends[first], world.ends[-1]
    speed = (len(world.ends) - 1 - first) * case.update_rows / span
    late = world.ages[len(world.ages) // 4 :]
    ages, rows = (np.array([pair[n] for pair in late]) for n in (0, 1))
    servers = {"main": world.main, "learner's link": world.link_in, "main's link": world.link_out}
    shares = {name: server.busy / max(total, server.free_at) for name, server in servers.items() if server.busy}
    shares["learner"] = world.learner_busy / total
    shares["actors"] = min(1.0, world.actor_busy / total / case.actors)
    updates_s = speed / case.update_rows
    return Outcome(
        case,
        speed,
        float(np.average(ages, weights=rows)),
        int(ages.max()),
        shares,
        {name: server.stays / max(total, server.free_at) for name, server in servers.items() if server.busy},
        {
            "trajectories": speed * case.row_bytes,
            "policies": updates_s * case.policy_bytes * (case.nodes if case.link else 1),
        },
    )


GAME = Case(
    actors=1, agents=16, tick_s=20e-3, update_rows=2048, lag=1, update_row_s=66.5 * MICRO, intake_batch_s=100 * MICRO,
    message_s=100 * MICRO, messages=1, alive_s=1.0, report_s=0.8e-3,
    row_bytes=500, policy_bytes=400_000,
)  # fmt: skip
"""Game servers of 16 agents, 50 ticks a second, 118 floats and 4 actions a row; 2×256 units, 3 epochs."""
ON_RAY = {"message_s": 750 * MICRO, "report_s": 4e-3, "intake_batch_s": 1200 * MICRO, "link": 1.25e9}
"""Calls of Ray in place of messages, and nodes with links of 10 Gbit/s."""
CARTPOLE = Case(
    actors=1, agents=64, tick_s=64 * 3.7 * MICRO, update_rows=2048, lag=1, update_row_s=15.8 * MICRO,
    intake_batch_s=100 * MICRO, message_s=100 * MICRO, messages=1, alive_s=1.0, report_s=0.8e-3,
)  # fmt: skip


def grown(actors: int, **changes: object) -> Case:
    """The game at a size, with 128 steps of each actor in an update."""
    case = replace(GAME, actors=actors, update_rows=max(2048, 128 * actors), **(ON_RAY if actors > 4 else {}))
    return replace(case, **changes)  # type: ignore[arg-type]


def sizes() -> list[tuple[str, Case]]:
    """The rows of the page's first table."""
    cases = [(f"{n:,}, YAML unchanged", replace(grown(n), update_rows=2048)) for n in (1, 100, 10_000)]
    return cases + [(f"{n:,}, `buffer_size` {128 * n:,}", grown(n)) for n in (100, 10_000)]


def instead(actors: int) -> list[tuple[str, Case]]:
    """The rows of the second table: each with one change more."""
    changes: dict[str, dict[str, object]] = {
        "as it is": {},
        "one speaker a node for credits, policies and signs of life": {"per_speaker": 32},
        "a learner 20 times as fast (one GPU)": {"update_row_s": GAME.update_row_s / 20},
        "batches of a whole node: a 32nd of the intake's calls": {"intake_batch_s": ON_RAY["intake_batch_s"] / 32},
        "32 such learners": {"update_row_s": GAME.update_row_s / 640},
        "an inlet and a link for each of these": {
            "link": 32 * ON_RAY["link"],
            "intake_batch_s": ON_RAY["intake_batch_s"] / 1024,
        },
        "a tree: one speaker for 32 nodes": {"per_speaker": 1024},
    }
    cases, so_far = [], dict[str, object]()
    for name, change in changes.items():
        so_far |= change
        cases.append((name, grown(actors, **so_far)))
    return cases


def table(cases: list[tuple[str, Case]], updates: int = 8) -> None:
    """Print cases and what comes of them."""
    print("| | steps/s | of the game's | first bottleneck | shares of time | lag: mean, worst | MB/s |")
    print("|---|---|---|---|---|---|---|")
    for name, case in cases:
        out = simulate(case, updates)
        most = case.actors * case.agents / case.tick_s
        shares = ", ".join(f"{k} {v:.0%}" for k, v in sorted(out.shares.items(), key=lambda kv: -kv[1])[:3])
        rates = ", ".join(f"{k} {v / 1e6:,.1f}" for k, v in out.rates.items())
        cells = f"{out.steps_per_s:,.0f} | {out.steps_per_s / most:.1%} | **{out.busiest}** | {shares}"
        print(f"| {name} | {cells} | {out.lag:.2f}, {out.worst_lag} | {rates} |", flush=True)


def picture() -> str:
    """Steps per second and lag against actors, both axes as powers of ten where they are wide."""
    from curves import Panel, draw

    counts = (1, 3, 10, 32, 100, 316, 1000)
    kinds = {
        "2048 an update": lambda n: replace(grown(n), update_rows=2048),
        "128 steps an actor": grown,
        "three changes": lambda n: instead(n)[3][1],
    }
    outs = {name: {n: simulate(make(n), 8) for n in counts} for name, make in kinds.items()}
    speed = {name: {math.log10(n): [math.log10(o.steps_per_s)] for n, o in by.items()} for name, by in outs.items()}
    speed["game alone"] = {math.log10(n): [math.log10(n * GAME.agents / GAME.tick_s)] for n in counts}
    lag = {name: {math.log10(n): [o.worst_lag] for n, o in by.items()} for name, by in outs.items()}
    most = max(value for by in lag.values() for (value,) in by.values())
    label = "actors, as a power of ten"
    return draw(
        [
            Panel("steps per second, as a power of ten", speed, label, 6, 2),
            Panel("worst lag, in updates", lag, label, most + 1),
        ]
    )


def check() -> None:
    """Cases worked out by hand.

    32 ticks of 1 ms fill an update of 2048 rows that takes 20.48 ms. At lag 0 one waits for the other: 52.48 ms. At lag
    1 the longer one counts: 32 ms. With ticks of 0.1 ms that is the update. 2048 rows of 1000 bytes need 40.96 ms on a
    link of 50 MB/s. Each of 100 actors asks once, is granted once and gets a policy: main has 300 messages of 1 ms.
    """
    plain = Case(actors=1, agents=64, tick_s=1e-3, update_rows=2048, lag=0, update_row_s=10 * MICRO)
    expected = {
        "lag 0": (plain, 52.48e-3),
        "lag 1, slow game": (replace(plain, lag=1), 32e-3),
        "lag 1, slow learner": (replace(plain, lag=1, tick_s=1e-4), 20.48e-3),
        "narrow link": (replace(plain, lag=1, row_bytes=1000, link=50e6), 40.96e-3),
        "two actors": (replace(plain, actors=2, lag=1, tick_s=1e-3), 20.48e-3),
    }
    for name, (case, seconds) in expected.items():
        out = simulate(case, 40)
        took = case.update_rows / out.steps_per_s
        assert abs(took / seconds - 1) < 0.04, (
            f"{name}: {took * 1e3:.2f} ms from update to update, expected {seconds * 1e3:.2f}"
        )
        assert all(share <= 1.0 + 1e-9 for share in out.shares.values()), f"{name}: busier than always: {out.shares}"
        assert out.worst_lag <= case.lag, f"{name}: lag {out.worst_lag} with {case.lag} allowed"
    busy = simulate(replace(plain, actors=100, update_rows=6400, lag=1, update_row_s=MICRO, message_s=1e-3), 12)
    took = 6400 / busy.steps_per_s
    assert busy.busiest == "main", busy
    assert abs(took / 0.3 - 1) < 0.04, f"300 messages of 1 ms took {took * 1e3:.0f} ms: {busy}"
    print(f"checked: {len(expected) + 1} cases worked out by hand")


def main() -> None:
    """Print the tables, or draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    check()
    if arguments.check:
        return
    if arguments.picture:
        arguments.picture.write_text(picture())
        return
    print("\nThe sizes")
    table(sizes())
    print("\n10,000 actors, with one change more in each row")
    table(instead(10_000))
    print("\nCartPole on one machine, to be compared with runs: growing_costs.py runs")
    table(
        [
            (f"{n} on {kind}", replace(CARTPOLE, actors=n, **more))
            for kind, more in (("process", {}), ("ray", ON_RAY))
            for n in (1, 2, 4)
        ],
        40,
    )


if __name__ == "__main__":
    main()
