"""Converts an entry: its hyperparameters according to the table, and values that depend on several keys.

The result (`RunDraft`) has Headrace's keys with the original ones as comments, and the settings left out.

The zoo evaluates Python expressions in its files, such as `dict(net_arch=[64, 64], activation_fn=nn.ReLU)`. Here they
are only parsed: a name stays a name, and anything that is neither a name nor a literal is refused.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.config.errors import ConfigError, Mistake, suggest
from headrace.config.legacy.old_values import Notes, OldValue, Target, integral
from headrace.config.legacy.rl_zoo import keys
from headrace.config.legacy.rl_zoo.entries import Entry, EntryRequest, NoEntryError, find_entry, is_atari
from headrace.config.legacy.rl_zoo.keys import IDLE, OF_ITSELF, Key
from headrace.config.yaml_reader import Document

_FEW_STEPS = 8
"""Highest number of steps between two rounds of updates for which single updates after every few steps are the same."""
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


def convert_environment(entry: Entry, writing: RunDraft, given: Mapping[str, EntryValue]) -> None:
    """Write the section `environment`, and the keys that replace the entry's wrappers and callbacks.

    Args:
        entry: the entry.
        writing: receives the result.
        given: the entry's values; only those about the environment are used.
    """
    wrappers = list(_classes(given.get("env_wrapper"), writing))
    options = writing.expression(given["env_kwargs"]) if "env_kwargs" in given else {}
    id_ = EntryValue("--id", entry.env_id, entry.whole)
    writing.top.put("environment.kind", "gymnasium", entry.whole)
    if [name.rpartition(".")[2] for name, _, _ in wrappers] == ["AtariWrapper"] and is_atari(entry.env_id):
        _convert_atari(id_, writing, given, wrappers[0], options)
    else:
        writing.put("environment.id", entry.env_id, id_, top=True)
        if options:
            values = {key: option.value for key, option in options.items()}
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
    id_: EntryValue,
    writing: RunDraft,
    given: Mapping[str, EntryValue],
    wrapper: tuple[str, dict[str, Any], EntryValue],
    options: Mapping[str, EntryValue],
) -> None:
    game = re.sub(r"NoFrameskip-v\d+$", "-v5", id_.value)
    ours = game if game.startswith("ALE/") else f"ALE/{game}"
    writing.put("environment.id", ours, id_, f"{id_.value}, with its own vectorised implementation", top=True)
    _, arguments, wrapper_value = wrapper
    stack = given.get("frame_stack") or writing.default("frame_stack", 1)
    values = {"stack_num": integral(stack.value)}
    for key, value in {"terminal_on_life_loss": True, "action_repeat_probability": 0.0, **arguments}.items():
        values |= dict.fromkeys(_ATARI.get(key, ()), integral(value))
        if key not in _ATARI:
            writing.leave_out(EntryValue(f"AtariWrapper.{key}", value, wrapper_value.old), "it is an unknown key")
    values |= {key: option.value for key, option in options.items()}
    comment = "AtariWrapper and frame_stack; each life is an episode, unless episodic_life is false"
    writing.put("environment.options", values, wrapper_value, comment, top=True)


def _wrap(
    writing: RunDraft, given: Mapping[str, EntryValue], wrappers: list[tuple[str, dict[str, Any], EntryValue]]
) -> None:
    stack = given.get("frame_stack")
    pictures = "policy" in given and given["policy"].value == "CnnPolicy"
    ours: list[dict[str, Any]] = []
    origins: list[str] = []
    for name, arguments, origin in wrappers:
        module, _, short = name.rpartition(".")
        if short == "TimeLimit" and [*arguments] == ["max_episode_steps"]:
            writing.put("environment.max_episode_steps", integral(arguments["max_episode_steps"]), origin, top=True)
        elif short not in OF_ITSELF:
            planes = short == _GREY and stack is not None and pictures
            kept = {key: value for key, value in arguments.items() if not (planes and key == "keep_dim")}
            ours.append({"use": f"{module}:{short}", **({"with": kept} if kept else {})})
            origins.append(f"{short}{' (keep_dim: false, to be stacked)' if kept != arguments else ''}")
    if stack is not None and stack.value not in (None, 1):
        if pictures and not any(wrapper["use"].endswith(f":{_GREY}") for wrapper in ours):
            writing.leave_out(stack, f"only greyscale images can be stacked here; add {_GREY} to env_wrapper")
        else:
            arguments = {"stack_size": integral(stack.value), "padding_type": "zero"}
            ours.append({"use": "gymnasium.wrappers:FrameStackObservation", "with": arguments})
            ours += [] if pictures else [{"use": "gymnasium.wrappers:FlattenObservation"}]
            origins.append(str(stack))
    if ours:
        source = given.get("env_wrapper") or given["frame_stack"]
        writing.put("environment.wrappers", ours, source, f"the innermost first: {', '.join(origins)}", top=True)


def _leave_out_classes(writing: RunDraft, given: EntryValue | None, why: str) -> None:
    """Report the classes that a key lists, except those whose effect is built into Headrace."""
    for name, arguments, origin in _classes(given, writing):
        if name.rpartition(".")[2] not in OF_ITSELF:
            writing.leave_out(EntryValue(origin.key, {name: arguments} if arguments else name, origin.old), why)


def _classes(given: EntryValue | None, writing: RunDraft) -> Iterator[tuple[str, dict[str, Any], EntryValue]]:
    """Yield each class that a key lists, as its dotted name, its arguments and the value that names it."""
    if given is None or given.value is None:
        return
    for listed in given.value if isinstance(given.value, list) else [given.value]:
        name, arguments = next(iter(listed.items()), ("", {})) if isinstance(listed, dict) else (listed, {})
        single = not isinstance(listed, dict) or len(listed) == 1
        if single and isinstance(name, str) and "." in name and isinstance(arguments or {}, dict):
            yield name, arguments or {}, given
        else:
            writing.wrong(
                given,
                f"{in_words(listed)} is not valid; expected package.module.Class, or a map from it to its arguments",
            )


_SUMMARIES = 20
_DEFAULT_STEPS = 1_000_000
_ENVIRONMENT = ("env_wrapper", "env_kwargs", "frame_stack", "monitor_kwargs", "vec_env_wrapper", "callback")
_SEPARATELY = (*_ENVIRONMENT, "n_envs", "n_timesteps", "policy", "policy_kwargs", "normalize", "sde_sample_freq")
_OF_PPO, _OF_SAC = ("n_steps", "batch_size"), ("train_freq", "gradient_steps")
_POLICIES = ("MlpPolicy", "CnnPolicy", "MultiInputPolicy")
_IN_TURN = "as in Stable-Baselines3; without this key actors may collect while the trainer learns"
_PICTURES = 512
"""Number of output features of Stable-Baselines3's NatureCNN."""


@dataclass(frozen=True, slots=True)
class ConvertedEntry:
    """A run converted from an entry."""

    document: Document
    data: dict[str, Any]
    notes: Notes
    header: str
    """Comment lines for the top of the file."""
    left_out: tuple[str, ...]
    """Settings without a counterpart, each with the reason."""


def convert_entry(document: Document, request: EntryRequest) -> ConvertedEntry:
    """Convert the requested entry, and list settings without a counterpart.

    Raises:
        ConfigError: if the entry or the algorithm can't be determined.
    """
    document = document.last_of_repeated()
    try:
        entry = find_entry(document, request)
    except NoEntryError as error:
        raise ConfigError([Mistake(document.name, None, "", str(error))]) from None
    notes = Notes()
    behavior = re.sub(r"-v\d+$", "", re.split("[:/]", entry.env_id)[-1]) or entry.env_id
    writing = RunDraft(notes, behavior, entry.whole)
    given = {key: EntryValue(key, old.value, old) for key, old in entry.values.items()}
    convert_environment(entry, writing, given)
    writing.own.put("trainer_type", entry.algorithm, entry.whole)
    (_convert_ppo if entry.algorithm == "ppo" else _convert_sac)(writing, given)
    _convert_ends(writing, given)
    writing.top.put_at(("behaviors", behavior), writing.own.data, entry.whole)
    if entry.algorithm == "ppo":
        squashed = writing.own.data.get("network_settings", {}).get("gsde", {}).get("squash_output")
        if not (squashed or is_atari(entry.env_id)):
            units = "as in Stable-Baselines3: continuous actions are in the environment's units, clipped to its bounds"
            writing.top.put("environment.action_bounds", "clip", entry.whole, units)
        writing.top.put("pipeline.max_policy_lag", 0, entry.whole, _IN_TURN)
    writing.top.put("checkpoint_settings.run_id", f"{behavior}-{entry.algorithm}", entry.whole)
    if entry.name and entry.name != entry.env_id:
        notes.warn(entry.whole, "--id", f"{entry.env_id} has no entry, so the entry '{entry.name}' is converted")
    return ConvertedEntry(document, writing.top.data, notes, _header(entry, writing), tuple(writing.left_out))


def _header(entry: Entry, writing: RunDraft) -> str:
    name = f"the entry '{in_words(entry.name)}'" if entry.name else "an entry"
    lines = [f"{entry.algorithm.upper()} for {in_words(entry.env_id)}, by {name} of rl-baselines3-zoo"]
    lines += ["Each comment names the zoo's key, and its value if that differs. The differences that remain are in"]
    lines += ["docs/stable-baselines3.md. For your own environment class, replace `id: …` by `factory: module:Class`"]
    for title, parts in (
        ("No equivalent, so the run trains differently:", writing.left_out),
        ("Different from Stable-Baselines3's defaults, which the entry does not change:", writing.otherwise),
    ):
        lines += [title, *(f"  {part}" for part in dict.fromkeys(parts))] if parts else []
    return "".join(f"# {line}\n" for line in lines)


def _convert_ppo(writing: RunDraft, given: Mapping[str, EntryValue]) -> None:
    envs = _number(writing, given, "n_envs", 1)
    steps, batch = _number(writing, given, "n_steps", 2048), _number(writing, given, "batch_size", 64)
    rollout = steps.value * envs.value
    least = min(batch.value, rollout)
    less = f"{batch}; a rollout of n_steps × n_envs has {rollout}" if least < batch.value else ""
    writing.put("hyperparameters.batch_size", least, batch, less)
    writing.put("hyperparameters.buffer_size", rollout, steps, f"{steps} × {envs}")
    writing.write_all(keys.PPO, _without(given, (*_SEPARATELY, *_OF_PPO)), {})
    _convert_noise(writing, given, steps.value)
    _convert_policy(writing, given, keys.PPO_POLICY)
    _convert_normalize(writing, {"normalize": writing.default("normalize", False), **given})
    writing.put("time_horizon", steps.value, steps)


def _convert_sac(writing: RunDraft, given: Mapping[str, EntryValue]) -> None:
    _convert_frequencies(writing, given)
    buffer = given.get("replay_buffer_class")
    if buffer is not None and keys.is_hindsight(buffer.value):
        arguments = writing.expression(given["replay_buffer_kwargs"]) if "replay_buffer_kwargs" in given else {}
        writing.write_all(keys.SAC_HINDSIGHT, arguments, given)
        concatenated = "as in Stable-Baselines3, where the goal is an ordinary input"
        writing.put("network_settings.goal_conditioning_type", "none", buffer, concatenated)
        given = _without(given, ("replay_buffer_kwargs",))
    writing.write_all(keys.SAC, _without(given, (*_SEPARATELY, *_OF_SAC)), {})
    freq = given["train_freq"].value if "train_freq" in given else 1
    steps = freq[0] if isinstance(freq, list) and freq[1:] == ["step"] else freq
    _convert_noise(writing, given, steps if _is_count(steps) else None)
    _convert_policy(writing, given, keys.SAC_POLICY)
    _convert_normalize(writing, given)


def _convert_frequencies(writing: RunDraft, given: Mapping[str, EntryValue]) -> None:
    """Convert gradient_steps and train_freq, which counts either episodes or steps in all environments at once."""
    freq = given.get("train_freq") or writing.default("train_freq", 1)
    updates = given.get("gradient_steps") or writing.default("gradient_steps", 1)
    every, unit = freq.value if isinstance(freq.value, list) and len(freq.value) == 2 else (freq.value, "step")
    per_round = updates.value
    if unit not in ("step", "episode") or not (
        _is_count(every) and every > 0 and _is_count(per_round) and per_round >= -1
    ):
        writing.wrong(
            freq if freq.written else updates,
            f"'{freq}' and '{updates}' are not valid; expected whole numbers, or [1, episode]",
        )
        return
    if per_round == 0:
        writing.leave_out(updates, "a round needs at least one update")
        per_round = 1
    if unit == "episode":
        writing.put("hyperparameters.update_at", "episode_end", freq)
        if every != 1:
            writing.put("hyperparameters.train_freq", every, freq)
        if per_round == -1:
            writing.put("hyperparameters.steps_per_update", 1, updates)
        else:
            writing.put("hyperparameters.gradient_steps", per_round, updates)
        return
    envs = _number(writing, given, "n_envs", 1)
    steps = every * envs.value
    if steps > max(_FEW_STEPS, envs.value):
        writing.put("hyperparameters.train_freq", steps, freq, f"{freq} × {envs}")
        writing.put("hyperparameters.gradient_steps", steps if per_round == -1 else per_round, updates)
        writing.top.put("pipeline.max_policy_lag", 0, freq.old, _IN_TURN)
    else:
        comment = "" if every == 1 else f"{freq}, {updates}: the same number of updates, made after every few steps"
        writing.put(
            "hyperparameters.steps_per_update", integral(steps / per_round) if per_round > 0 else 1, updates, comment
        )


def _convert_noise(writing: RunDraft, given: Mapping[str, EntryValue], rollout: int | None) -> None:
    """Convert sde_sample_freq, taking into account that Stable-Baselines3 also begins each rollout with new noise."""
    freq = given.get("sde_sample_freq") or writing.default("sde_sample_freq", -1)
    if "use_sde" not in given or not given["use_sde"].value:
        return
    sample_freq = integral(freq.value)
    if not _is_count(sample_freq):
        writing.wrong(freq, f"{in_words(sample_freq)} is not valid; expected a whole number")
        return
    lasts = [period for period in (sample_freq, rollout) if period is not None and period > 0]
    drawn = min(lasts, default=-1)
    comment = "" if drawn == sample_freq else f"{freq}; in Stable-Baselines3, each rollout begins with new noise"
    writing.put("network_settings.gsde.sample_freq", drawn, freq, comment)


def _convert_policy(writing: RunDraft, given: Mapping[str, EntryValue], table: Mapping[str, keys.Key]) -> None:
    policy = given.get("policy") or writing.default("policy", "MlpPolicy")
    arguments = writing.expression(given["policy_kwargs"]) if "policy_kwargs" in given else {}
    if policy.value not in _POLICIES:
        writing.leave_out(
            policy, "only Stable-Baselines3's own policies can be converted; see network_settings.network"
        )
    if policy.value == "CnnPolicy":
        arguments = _convert_pictures(writing, arguments, policy, on_policy=table is keys.PPO_POLICY)
        done = {"net_arch", "activation_fn"} - arguments.keys()
        table = {name: key for name, key in table.items() if name not in done}
    writing.write_all(table, arguments, given)


def _convert_pictures(
    writing: RunDraft, arguments: Mapping[str, EntryValue], policy: EntryValue, *, on_policy: bool
) -> dict[str, EntryValue]:
    """Write CnnPolicy's network, and return the arguments that are still to be converted."""
    writing.put("network_settings.vis_encode_type", "nature_cnn", policy)
    layers = arguments.get("net_arch") or writing.default("net_arch", None)
    try:
        of_actor, of_critic = [keys.layers_of(layers.value, name) if layers.value else [] for name in ("pi", "vf")]
    except ValueError as error:
        writing.leave_out(layers, str(error))
        of_actor = of_critic = []
    behind = f"and {layers}" if of_actor else "Headrace adds a layer of that size"
    comment = f"NatureCNN's {_PICTURES} features; {behind}"
    writing.put("network_settings.hidden_units", [_PICTURES, *of_actor], layers, comment)
    if of_critic != of_actor:
        writing.put("network_settings.critic_hidden_units", [_PICTURES, *of_critic], layers)
    if on_policy and of_actor:
        apart = "actor and critic have separate layers and separate NatureCNNs"
        writing.otherwise.append(f"share_features_extractor: {apart}")
    elif on_policy:
        writing.put("hyperparameters.shared_critic", True, policy, "CnnPolicy: actor and critic share NatureCNN")
    if of_actor:
        default = writing.default("activation_fn", "nn.Tanh" if on_policy else "nn.ReLU")
        return {"activation_fn": default, **_without(arguments, ("net_arch",))}
    writing.put("network_settings.activation", "relu", policy)
    return _without(arguments, ("net_arch", "activation_fn"))


def _convert_normalize(writing: RunDraft, given: Mapping[str, EntryValue]) -> None:
    whole = given.get("normalize")
    if whole is None:
        return
    normalizes = whole.value is not False and whole.value is not None
    arguments = writing.expression(whole) if normalizes and whole.value is not True else {}
    both = {
        name: EntryValue(f"normalize.{name}", normalizes, whole.old, whole.written)
        for name in ("norm_obs", "norm_reward")
    }
    writing.write_all(keys.NORMALIZE, {**both, **arguments}, {})


def _convert_ends(writing: RunDraft, given: Mapping[str, EntryValue]) -> None:
    steps = _number(writing, given, "n_timesteps", _DEFAULT_STEPS)
    writing.put("max_steps", steps.value, steps)
    summaries = EntryValue("n_timesteps", max(1, int(steps.value) // _SUMMARIES), steps.old)
    writing.put("summary_freq", summaries.value, summaries, f"{_SUMMARIES} summaries")


def _number(writing: RunDraft, given: Mapping[str, EntryValue], key: str, default: int) -> EntryValue:
    """Return a positive integer; report any other value as a mistake."""
    given_value = given.get(key) or writing.default(key, default)
    value = integral(given_value.value)
    if not _is_count(value) or value < 1:
        writing.wrong(given_value, f"{in_words(value)} is not valid; expected a whole number above 0")
        value = default
    return replace(given_value, value=value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _without(given: Mapping[str, EntryValue], names: tuple[str, ...]) -> dict[str, EntryValue]:
    return {name: value for name, value in given.items() if name not in names}


_LONGEST = 60


@dataclass(frozen=True, slots=True)
class EntryValue:
    """The value of a Stable-Baselines3 key, either from the entry or by default."""

    key: str
    value: Any
    old: OldValue
    """The enclosing value in the file, used for its location."""
    written: bool = True
    """True if the entry contains the value; False if it is a default."""

    def __str__(self) -> str:
        return f"{in_words(self.key)}: {in_words(self.value)}"


class RunDraft:
    """A run that is being built from an entry.

    Args:
        notes: receives warnings, mistakes, comments and origins.
        behavior: the name of the only behaviour.
        whole: the entire entry, which is recorded as the origin of defaults.
    """

    def __init__(self, notes: Notes, behavior: str, whole: OldValue) -> None:
        self._notes = notes
        self._whole = whole
        self.top = Target(notes)
        self.own = Target(notes, ("behaviors", behavior))
        self.left_out: list[str] = []
        """Settings without a counterpart, each with the reason."""
        self.otherwise: list[str] = []
        """Differences from Stable-Baselines3 in settings that the entry does not mention."""

    def default(self, key: str, value: Any) -> EntryValue:
        """Return one of Stable-Baselines3's defaults."""
        return EntryValue(key, value, self._whole, written=False)

    def put(
        self, to: str, value: Any, given: EntryValue, comment: str = "", *, top: bool = False, note: str = ""
    ) -> None:
        """Write a value. Its comment states its origin unless another comment is given, followed by the note."""
        origin = in_words(given.key) if given.value == value else str(given)
        origin = origin if given.written else f"their default for {given.key}"
        (self.top if top else self.own).put(to, value, given.old, f"{comment or origin}{note and f'; {note}'}")

    def leave_out(self, given: EntryValue, why: str) -> None:
        """Report a setting without a counterpart."""
        self.left_out.append(f"{given}: {why}")
        self._notes.warn(given.old, str(given), f"has no equivalent: {why}")

    def wrong(self, given: EntryValue, why: str) -> None:
        """Report a value that can't be read."""
        self._notes.wrong(given.old, why if given.old.path[-1:] == (given.key,) else f"{given.key}: {why}")

    def expression(self, given: EntryValue) -> dict[str, EntryValue]:
        """Read a map, which may be a Python expression; return its values, keyed by name."""
        value = given.value
        try:
            value = read_expression(value) if isinstance(value, str) else value
        except ValueError as error:
            self.wrong(given, str(error))
            return {}
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.wrong(given, f"{in_words(value)} is not valid; expected a map, or dict(…) in quotes")
            return {}
        return {key: EntryValue(f"{given.key}.{key}", inner, given.old) for key, inner in value.items()}

    def write_all(
        self, table: Mapping[str, Key], given: Mapping[str, EntryValue], beside: Mapping[str, EntryValue]
    ) -> None:
        """Write all keys in a table; `beside` contains other values that keys may depend on."""
        around = {**beside, **given}
        for name, key in table.items():
            value = given.get(name) or self.default(name, key.default)
            if not key.needs or (key.needs in around and around[key.needs].value):
                self._write(key, value)
        for name, value in given.items():
            if name not in table:
                self.leave_out(value, f"it is an unknown key{suggest(name, table)}")

    def _write(self, key: Key, given: EntryValue) -> None:
        value = given.value
        if key.to is None:
            if value == (key.default if key.here is None else key.here):
                return
            if given.written:
                self.leave_out(given, key.why)
            else:
                self.otherwise.append(f"{given}: {key.why}")
            return
        falls = _fall(value) if key.falls else None
        try:
            ours = key.write(value) if falls is None else falls
            second = key.also[1](value) if key.also else None
        except ValueError as error:
            self.leave_out(given, str(error))
            if given.written and key.default is not None:
                self._write(key, self.default(given.key, key.default))
            return
        if key.to != IDLE and ours is not None and not (key.top and ours == key.default):
            self.put(key.to, ours, given, top=key.top, note=key.note)
            if key.also and second is not None:
                self.put(key.also[0], second, given)
            if key.falls:
                self.own.put(f"{key.to}_schedule", "constant" if falls is None else "linear", given.old)


def _fall(value: Any) -> float | None:
    """Return the initial value of `lin_…`, which falls to 0; None for any other value."""
    try:
        return float(value.removeprefix("lin_")) if isinstance(value, str) and value.startswith("lin_") else None
    except ValueError:
        return None


def in_words(value: Any) -> str:
    """Return a Stable-Baselines3 value as text for a comment, on one line and shortened."""
    if isinstance(value, str):
        text = value if isinstance(value, Name) or (value.isprintable() and value) else ascii(value)
    elif isinstance(value, dict):
        text = f"{{{', '.join(f'{in_words(key)}: {in_words(inner)}' for key, inner in value.items())}}}"
    elif isinstance(value, list):
        text = f"[{', '.join(map(in_words, value))}]"
    elif value is None or isinstance(value, bool):
        text = {None: "null", True: "true", False: "false"}[value]
    else:
        text = f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else ascii(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


_LONGEST_EXPRESSION = 10_000
_MOST = 2**63
_EXPECTED = "expected dict(…), lists, numbers, strings and names such as nn.ReLU"


class Name(str):
    """A dotted Python name."""

    __slots__ = ()


def read_expression(text: str) -> Any:
    """Read an expression made of maps, lists, scalars and `Name`s.

    Raises:
        ValueError: if the text contains anything else; the message completes "<key>: …".
    """
    if len(text) > _LONGEST_EXPRESSION:
        raise ValueError(f"has {len(text):,} characters; expected at most {_LONGEST_EXPRESSION:,}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about unknown escapes
            return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"is not a Python expression ({type(error).__name__}); {_EXPECTED}") from error


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=None | bool() | float() | str()):
            return node.value
        case ast.Constant(value=int() as number) if abs(number) < _MOST:
            return number
        case ast.List() | ast.Tuple():
            return [_value(item) for item in node.elts]
        case ast.Dict():
            return {_key(key): _value(value) for key, value in zip(node.keys, node.values, strict=True)}
        case ast.Call(func=ast.Name(id="dict"), args=[]):
            return {_key(word.arg): _value(word.value) for word in node.keywords}
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.Name():
            return Name(node.id)
        case ast.Attribute():
            return Name(f"{_value(node.value)}.{node.attr}")
    raise ValueError(f"contains a {type(node).__name__}, which is not evaluated; {_EXPECTED}")


def _key(key: ast.expr | str | None) -> str:
    name = key.value if isinstance(key, ast.Constant) else key
    if isinstance(name, str):
        return name
    raise ValueError(f"has a key that is not a string; {_EXPECTED}")
