"""The cases that trainers are accepted by: those of ML-Agents without self-play, and five tasks of ours.

Hyperparameters, steps and thresholds of the former are ML-Agents' own (its tests of PPO, POCA, SAC, hybrid actions and
GAIL), with one instance of the task, as there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import yaml
from acceptance.group_tasks import EXAMPLE
from acceptance.harness import DEMOS, Case, Demonstrations, Plain

PPO: Plain = {
    "trainer_type": "ppo",
    "hyperparameters": {
        "learning_rate": 5e-3,
        "learning_rate_schedule": "constant",
        "batch_size": 16,
        "buffer_size": 64,
    },
    "network_settings": {"num_layers": 1, "hidden_units": 32},
    "summary_freq": 500,
    "max_steps": 3000,
}
SAC: Plain = {
    "trainer_type": "sac",
    "hyperparameters": {
        "learning_rate": 5e-3,
        "learning_rate_schedule": "constant",
        "batch_size": 8,
        "buffer_size": 5000,
        "buffer_init_steps": 100,
        "tau": 0.01,
        "init_entcoef": 0.01,
    },
    "network_settings": {"num_layers": 1, "hidden_units": 16},
    "summary_freq": 100,
    "max_steps": 1000,
}
POCA: Plain = {**PPO, "trainer_type": "poca"}
ACTIONS = {"discrete": {"branches": 1}, "continuous": {"continuous": 1}}
MEMORY = {"memory_size": 16}


def changed(base: Plain, **changes: Any) -> Plain:
    """A behaviour's block with keys changed: of the block itself, its hyperparameters or its network."""
    block = {**base, **{section: dict(base.get(section, {})) for section in ("hyperparameters", "network_settings")}}
    for key, value in changes.items():
        place = block
        if key in _HYPERPARAMETERS:
            place = block["hyperparameters"]
        elif key in _NETWORK:
            place = block["network_settings"]
        place[key] = value
    return block


_HYPERPARAMETERS = {
    *("learning_rate", "batch_size", "buffer_size", "buffer_init_steps", "steps_per_update", "shared_critic", "beta"),
    *(
        "num_epoch",
        "tau",
        "init_entcoef",
        "max_grad_norm",
        "lambd",
        "reward_signal_steps_per_update",
        "ratio_per_dimension",
    ),
}
_NETWORK = {"hidden_units", "num_layers", "memory", "vis_encode_type", "goal_conditioning_type", "activation"}


def _simple(name: str, behavior: Plain, threshold: float, **options: Any) -> Case:
    return Case(name, "Simple", behavior, threshold, options)


def _ppo_cases() -> list[Case]:
    slow = changed(PPO, learning_rate=3e-4)
    cases = [_simple(f"ppo {kind}", PPO, 0.9, **actions) for kind, actions in ACTIONS.items()]
    two = changed(PPO, batch_size=64, buffer_size=640, max_steps=10000)
    for kind, actions in {"discrete": {"branches": 2}, "continuous": {"continuous": 2}}.items():
        cases.append(_simple(f"ppo 2-D {kind}", two, 0.9, step_size=0.8, **actions))
    for kind, actions in ACTIONS.items():
        for visuals in (1, 2):
            for shared in (False, True):
                settings = changed(slow, shared_critic=shared)
                name = f"ppo {visuals} visual {kind}{' shared' if shared else ''}"
                cases.append(_simple(name, settings, 0.9, vectors=0, visuals=visuals, **actions))
        cases += _sets("ppo", slow, kind, actions)
        recurrent = changed(PPO, learning_rate=1e-3, batch_size=64, buffer_size=128, max_steps=6000, memory=MEMORY)
        cases.append(_simple(f"ppo recurrent {kind}", recurrent, 0.9, memory=True, **actions))
    return [*cases, *_encoders("ppo", changed(slow, hidden_units=16, max_steps=900, summary_freq=100))]


def _sets(trainer: str, settings: Plain, kind: str, actions: dict[str, int]) -> list[Case]:
    """Sets beside what else is seen, the first of which is a goal (a set can't be one)."""
    cases = []
    for visuals in (0, 1):
        for vectors in (0, 1):
            for sets in (1, 2):
                seen = {
                    "vectors": vectors,
                    "visuals": visuals,
                    "sets": sets,
                    "goals": (0,) if vectors + visuals else (),
                }
                name = f"{trainer} {vectors} vector {visuals} visual {sets} sets {kind}"
                cases.append(_simple(name, settings, 0.9, **seen, **actions))
    return cases


def _encoders(trainer: str, settings: Plain) -> list[Case]:
    cases = []
    for encoder, shape in {"resnet": (3, 36, 36), "nature_cnn": (3, 36, 36), "match3": (5, 5, 5)}.items():
        for visuals in (1, 2):
            seen = {"vectors": 0, "visuals": visuals, "visual_shape": shape, "step_size": 0.5}
            block = changed(settings, vis_encode_type=encoder)
            cases.append(_simple(f"{trainer} {visuals} {encoder}", block, 0.5, branches=1, **seen))
    return cases


def _poca_cases() -> list[Case]:
    slow = changed(POCA, learning_rate=3e-4)
    many = changed(slow, max_steps=25000)
    cases = [_group(f"poca {kind}", POCA, 0.9, **actions) for kind, actions in ACTIONS.items()]
    for visuals in (1, 2):
        cases.append(_group(f"poca {visuals} visual", slow, 0.9, branches=1, vectors=0, visuals=visuals))
    for case in _sets("poca", many, "discrete", ACTIONS["discrete"]):
        cases.append(replace(case, task="MultiAgent", grouped=True))
    recurrent = changed(POCA, learning_rate=1e-3, batch_size=64, buffer_size=128, max_steps=6000, memory=MEMORY)
    for kind, actions in ACTIONS.items():
        cases.append(_simple(f"poca recurrent {kind}", recurrent, 0.9, memory=True, **actions))
    return cases


def _group(name: str, behavior: Plain, threshold: float, **options: Any) -> Case:
    return Case(name, "MultiAgent", behavior, threshold, options, grouped=True)


def _sacrifice_cases() -> list[Case]:
    """One has to give itself up for the other: examples/cooperation, as it is and with PPO in place of POCA."""
    example = yaml.safe_load((EXAMPLE / "config.yaml").read_text(encoding="utf-8"))
    settings, instances = example["behaviors"]["Door"], example["environment"]["num_envs"]
    alone = {**settings, "trainer_type": "ppo"}
    return [
        Case("poca sacrifice", "TheDoor", settings, 0.9, {}, num_envs=instances, grouped=True),
        Case("ppo sacrifice", "TheDoor", alone, 0.5, {}, num_envs=instances, grouped=True, fails=True),
    ]


def _sac_cases() -> list[Case]:
    slow = changed(SAC, batch_size=16, learning_rate=3e-4)
    cases = [_simple(f"sac {kind}", SAC, 0.9, **actions) for kind, actions in ACTIONS.items()]
    two = changed(SAC, buffer_init_steps=2000, max_steps=3000)
    for kind, actions in {"discrete": {"branches": 2}, "continuous": {"continuous": 2}}.items():
        cases.append(_simple(f"sac 2-D {kind}", two, 0.8, step_size=0.8, **actions))
    for kind, actions in ACTIONS.items():
        for visuals in (1, 2):
            cases.append(_simple(f"sac {visuals} visual {kind}", slow, 0.9, vectors=0, visuals=visuals, **actions))
        for sets in (1, 2):
            cases.append(_simple(f"sac {sets} sets {kind}", slow, 0.9, vectors=0, sets=sets, **actions))
        step = 0.2 if kind == "discrete" else 0.5
        cases.append(_simple(f"sac recurrent {kind}", _RECURRENT_SAC, 0.9, memory=True, step_size=step, **actions))
    advanced = changed(slow, hidden_units=16, max_steps=100, summary_freq=100, buffer_init_steps=0)
    return [*cases, *_encoders("sac", advanced)]


_RECURRENT_SAC = changed(
    SAC,
    batch_size=256,
    learning_rate=3e-4,
    buffer_init_steps=1000,
    steps_per_update=2,
    max_steps=4000,
    memory={**MEMORY, "sequence_length": 16},
)


def _hybrid_cases() -> list[Case]:
    ppo = changed(PPO, batch_size=64, buffer_size=1024, learning_rate=1e-3, max_steps=20000)
    sac = changed(SAC, buffer_size=50000, batch_size=256, buffer_init_steps=0, max_steps=8000)
    cases = []
    # ML-Agents' case has the default discount of 0.99, with which about half of the seeds learn to end episodes quickly,
    # whatever the goal, before they learn to look at it: with four actions the cost of steps outweighs the answer.
    short_sighted = {**ppo, "reward_signals": {"extrinsic": {"gamma": 0.8}}}
    for trainer, settings in {"ppo": ppo, "sac": sac}.items():
        for continuous, branches in ((1, 1), (2, 2), (1, 2), (2, 1)):
            actions = {"continuous": continuous, "branches": branches}
            name = f"{trainer} hybrid {continuous}+{branches}"
            block = short_sighted if name == "ppo hybrid 2+2" else settings
            cases.append(_simple(name, block, 0.9, step_size=0.8, **actions))
    both = {"continuous": 1, "branches": 1}
    # ML-Agents' form of the ratio, which clips less: of the joint action two and three of five seeds came past 0.9 in so
    # few steps, the others to 0.8 and more.
    visual_ppo = changed(ppo, learning_rate=1e-4, max_steps=8000, ratio_per_dimension=True)
    visual_sac = changed(SAC, buffer_size=50000, batch_size=128, learning_rate=3e-4, max_steps=3000)
    for visuals in (1, 2):
        seen = {"vectors": 0, "visuals": visuals}
        cases.append(_simple(f"ppo hybrid {visuals} visual", visual_ppo, 0.9, **seen, **both))
        cases.append(_simple(f"sac hybrid {visuals} visual", visual_sac, 0.9, **seen, **both))
    recurrent = changed(PPO, learning_rate=1e-3, batch_size=64, buffer_size=512, max_steps=5000, memory=MEMORY)
    cases.append(_simple("ppo hybrid recurrent", recurrent, 0.9, memory=True, step_size=0.5, **both))
    cases.append(_simple("sac hybrid recurrent", _RECURRENT_SAC, 0.9, memory=True, step_size=0.5, **both))
    return cases


def _imitation_cases() -> list[Case]:
    """GAIL and cloning together, with no reward but GAIL's."""
    cases = []
    for trainer, base in {"ppo": PPO, "sac": SAC}.items():
        for kind, actions in ACTIONS.items():
            settings = _imitating(changed(base, max_steps=500), {"encoding_size": 32}, 1000)
            cases.append(_imitation(f"{trainer} gail+bc {kind}", settings, **actions))
            seen = {"vectors": 0, "visuals": 1, "step_size": 0.3 if trainer == "ppo" else 0.2, **actions}
            if trainer == "ppo":
                settings = _imitating(changed(base, max_steps=1000, learning_rate=1e-3), {"gamma": 0.8}, 1500)
            else:
                settings = _imitating(changed(base, max_steps=500, learning_rate=3e-4, batch_size=16), {}, 1000)
            cases.append(_imitation(f"{trainer} gail+bc visual {kind}", settings, **seen))
    return cases


def _imitating(block: Plain, gail: Plain, cloning_steps: int) -> Plain:
    cloning = {"demo_path": DEMOS, "strength": 1.0, "steps": cloning_steps}
    return changed(block, reward_signals={"gail": {"demo_path": DEMOS, **gail}}, behavioral_cloning=cloning)


def _imitation(name: str, behavior: Plain, **options: Any) -> Case:
    return Case(name, "Simple", behavior, 0.9, options, demonstrations=Demonstrations(100))


def _memory_cases() -> list[Case]:
    """A cue at the first step decides the answer ten steps later: solved with a memory, chance without."""
    ppo = changed(
        PPO,
        learning_rate=1e-3,
        batch_size=128,
        buffer_size=1024,
        hidden_units=32,
        max_steps=60000,
        summary_freq=10000,
        time_horizon=64,
    )
    sac = changed(
        SAC,
        learning_rate=1e-3,
        batch_size=256,
        buffer_size=20000,
        buffer_init_steps=1000,
        steps_per_update=4,
        hidden_units=32,
        max_steps=30000,
        summary_freq=5000,
    )
    memory = {"memory_size": 32, "sequence_length": 16}
    cases = []
    for trainer, settings in {"ppo": ppo, "sac": sac}.items():
        solved = changed(settings, memory=memory)
        # 95 % right answers are worth 0.9.
        cases.append(Case(f"{trainer} cue with memory", "CueMemory", solved, 0.89, {}, num_envs=8))
        cases.append(Case(f"{trainer} cue without memory", "CueMemory", settings, 0.5, {}, num_envs=8, fails=True))
    return cases


def _pixel_cases() -> list[Case]:
    ppo = changed(
        PPO,
        learning_rate=1e-3,
        batch_size=128,
        buffer_size=512,
        hidden_units=64,
        summary_freq=5000,
        shared_critic=True,
    )
    cases = []
    # Those that look at every pixel often need fewer steps, and take longer over each; the last does so on smaller ones.
    for encoder, steps, size in (
        ("simple", 20000, 36),
        ("nature_cnn", 20000, 36),
        ("fully_connected", 20000, 36),
        ("resnet", 8000, 36),
        ("match3", 8000, 20),
    ):
        settings = changed(ppo, vis_encode_type=encoder, max_steps=steps)
        cases.append(Case(f"ppo pixels {encoder}", "PixelTask", settings, 0.9, {"size": size}, num_envs=16))
    return cases


def _corridor_cases() -> list[Case]:
    """A reward that walking at random does not find within the budget; curiosity does.

    Half as long a corridor will not do: PPO without a reward walks where its value network, which has not been there yet,
    is by chance hopeful, and so finds the end of 40 steps on some seeds.
    """
    ppo = changed(
        PPO,
        learning_rate=1e-3,
        batch_size=256,
        buffer_size=1024,
        hidden_units=64,
        max_steps=120000,
        summary_freq=10000,
        beta=0.01,
    )
    extrinsic = {"extrinsic": {"gamma": 0.99, "strength": 1.0}}
    curiosity = {"curiosity": {"gamma": 0.99, "strength": 0.1, "learning_rate": 1e-3}}
    rnd = {"rnd": {"gamma": 0.99, "strength": 0.1, "learning_rate": 1e-3}}
    cases = []
    for name, signals in {"extrinsic only": {}, "curiosity": curiosity, "rnd": rnd}.items():
        settings = changed(ppo, reward_signals={**extrinsic, **signals})
        cases.append(Case(f"corridor {name}", "Corridor", settings, 0.8, {}, num_envs=16, fails=not signals))
    return cases


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        *_ppo_cases(),
        *_poca_cases(),
        *_sac_cases(),
        *_hybrid_cases(),
        *_imitation_cases(),
        *_memory_cases(),
        *_pixel_cases(),
        *_corridor_cases(),
        *_sacrifice_cases(),
    )
}
"""All cases by name."""
