"""Converts an entry's environment: its id, wrappers, stacked frames and arguments become `environment`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from headrace.config.legacy.old_values import integral
from headrace.config.legacy.rl_zoo.entries import Entry, is_atari
from headrace.config.legacy.rl_zoo.keys import OF_ITSELF
from headrace.config.legacy.rl_zoo.writing import Given, Writing, in_words

_ATARI: Mapping[str, tuple[str, ...]] = {
    "noop_max": ("noop_max",),
    "frame_skip": ("frameskip",),
    "screen_size": ("img_height", "img_width"),
    "terminal_on_life_loss": ("episodic_life",),
    "clip_reward": ("reward_clipping",),
    "action_repeat_probability": ("repeat_action_probability",),
}
"""Maps an argument of Stable-Baselines3's AtariWrapper to the options of the Arcade Learning Environment's vectorised
games."""
_GREY = "GrayscaleObservation"


def convert_environment(entry: Entry, writing: Writing, given: Mapping[str, Given]) -> None:
    """Write the section `environment`, and the keys that replace the entry's wrappers and callbacks.

    Args:
        entry: the entry.
        writing: receives the result.
        given: the entry's values; only those about the environment are used.
    """
    wrappers = list(_classes(given.get("env_wrapper"), writing))
    options = writing.expression(given["env_kwargs"]) if "env_kwargs" in given else {}
    id_ = Given("--id", entry.env_id, entry.whole)
    writing.top.put("environment.kind", "gymnasium", entry.whole)
    if [name.rpartition(".")[2] for name, _, _ in wrappers] == ["AtariWrapper"] and is_atari(entry.env_id):
        _convert_atari(id_, writing, given, wrappers[0], options)
    else:
        writing.put("environment.id", entry.env_id, id_, top=True)
        if options:
            values = {key: each.value for key, each in options.items()}
            writing.put("environment.options", values, given["env_kwargs"], top=True)
        _wrap(writing, given, wrappers)
    number = given.get("n_envs") or writing.default("n_envs", 1)
    writing.put("environment.num_envs", integral(number.value), number, top=True)
    monitor = writing.expression(given["monitor_kwargs"]) if "monitor_kwargs" in given else {}
    if keys := monitor.get("info_keywords"):
        writing.put("environment.info_keys", keys.value, keys, top=True)
    around = "Headrace wraps single environments (environment.wrappers)"
    _leave_out_classes(writing, given.get("vec_env_wrapper"), around)
    instead = "use evaluation, stop_when, or a script's on_summary"
    _leave_out_classes(writing, given.get("callback"), instead)


def _convert_atari(
    id_: Given,
    writing: Writing,
    given: Mapping[str, Given],
    wrapper: tuple[str, dict[str, Any], Given],
    options: Mapping[str, Given],
) -> None:
    game = re.sub(r"NoFrameskip-v\d+$", "-v5", id_.value)
    ours = game if game.startswith("ALE/") else f"ALE/{game}"
    writing.put("environment.id", ours, id_, f"{id_.value}, with its own vectorised implementation", top=True)
    _, arguments, found = wrapper
    stack = given.get("frame_stack") or writing.default("frame_stack", 1)
    values = {"stack_num": integral(stack.value)}
    for key, value in {"terminal_on_life_loss": True, "action_repeat_probability": 0.0, **arguments}.items():
        values |= dict.fromkeys(_ATARI.get(key, ()), integral(value))
        if key not in _ATARI:
            writing.leave_out(Given(f"AtariWrapper.{key}", value, found.old), "it is an unknown key")
    values |= {key: each.value for key, each in options.items()}
    comment = "AtariWrapper and frame_stack; each life is an episode, unless episodic_life is false"
    writing.put("environment.options", values, found, comment, top=True)


def _wrap(writing: Writing, given: Mapping[str, Given], wrappers: list[tuple[str, dict[str, Any], Given]]) -> None:
    stack = given.get("frame_stack")
    pictures = "policy" in given and given["policy"].value == "CnnPolicy"
    ours: list[dict[str, Any]] = []
    origins: list[str] = []
    for name, arguments, found in wrappers:
        module, _, short = name.rpartition(".")
        if short == "TimeLimit" and [*arguments] == ["max_episode_steps"]:
            writing.put("environment.max_episode_steps", integral(arguments["max_episode_steps"]), found, top=True)
        elif short not in OF_ITSELF:
            planes = short == _GREY and stack is not None and pictures
            kept = {key: value for key, value in arguments.items() if not (planes and key == "keep_dim")}
            ours.append({"use": f"{module}:{short}", **({"with": kept} if kept else {})})
            origins.append(f"{short}{' (keep_dim: false, to be stacked)' if kept != arguments else ''}")
    if stack is not None and stack.value not in (None, 1):
        if pictures and not any(each["use"].endswith(f":{_GREY}") for each in ours):
            writing.leave_out(stack, f"only greyscale images can be stacked here; add {_GREY} to env_wrapper")
        else:
            arguments = {"stack_size": integral(stack.value), "padding_type": "zero"}
            ours.append({"use": "gymnasium.wrappers:FrameStackObservation", "with": arguments})
            ours += [] if pictures else [{"use": "gymnasium.wrappers:FlattenObservation"}]
            origins.append(str(stack))
    if ours:
        source = given.get("env_wrapper") or given["frame_stack"]
        writing.put("environment.wrappers", ours, source, f"the innermost first: {', '.join(origins)}", top=True)


def _leave_out_classes(writing: Writing, given: Given | None, why: str) -> None:
    """Report the classes that a key lists, except those whose effect is built into Headrace."""
    for name, arguments, found in _classes(given, writing):
        if name.rpartition(".")[2] in OF_ITSELF:
            writing.idle.append(f"{found.key} {in_words(name)}")
        else:
            writing.leave_out(Given(found.key, {name: arguments} if arguments else name, found.old), why)


def _classes(given: Given | None, writing: Writing) -> Iterator[tuple[str, dict[str, Any], Given]]:
    """Yield each class that a key lists, as its dotted name, its arguments and the value that names it."""
    if given is None or given.value is None:
        return
    for each in given.value if isinstance(given.value, list) else [given.value]:
        name, arguments = next(iter(each.items()), ("", {})) if isinstance(each, dict) else (each, {})
        single = not isinstance(each, dict) or len(each) == 1
        if single and isinstance(name, str) and "." in name and isinstance(arguments or {}, dict):
            yield name, arguments or {}, given
        else:
            writing.wrong(
                given,
                f"{in_words(each)} is not valid; expected package.module.Class, or a map from it to its arguments",
            )
