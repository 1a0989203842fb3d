"""`load_policy`: from a run, or a file, to a policy that can be asked."""

from __future__ import annotations

import os

from headrace.pipeline.common.errors import RunError
from headrace.pipeline.policies.model_files import BEST, LAST, check_decides, find_model, read_model
from headrace.pipeline.prediction.policy import LoadedPolicy
from headrace.pipeline.prediction.policy_spaces import own_terms
from headrace.queues.specs import behavior_name


def load_policy(
    run_or_file: str | os.PathLike[str],
    behavior: str | None = None,
    checkpoint: str | int | None = None,
    seed: int | None = None,
) -> LoadedPolicy:
    """Load a trained policy, to ask it for actions.

        policy = load_policy("results/cartpole")
        action, state = policy.predict(obs)

    Args:
        run_or_file: the folder of a run, or of a behaviour in it, or a `.pt` or `.onnx` file. With an `.onnx` file
            neither torch nor an environment library is imported.
        behavior: of a run with several behaviours, the one that is wanted.
        checkpoint: of a run: "best" by its evaluations, "last", or a step; None is the last.
        seed: of the samples that `predict(…, deterministic=False)` draws; an `.onnx` file draws its own.

    Raises:
        RunError: if there is none, or it can't be read; the message says what is there.
    """
    if not isinstance(run_or_file, str | os.PathLike):
        raise RunError(
            f"load_policy: expected the folder of a run, or a file, got a {type(run_or_file).__name__}; the result of "
            "run() has it as .folder"
        )
    reference = os.fspath(run_or_file)
    if checkpoint is not None:
        if checkpoint not in (BEST, LAST) and not str(checkpoint).isdecimal():
            raise RunError(f"checkpoint: expected {BEST!r}, {LAST!r} or a step, got {checkpoint!r}")
        reference = f"{reference}@{checkpoint}"
    name = None if behavior is None else behavior_name(behavior)
    file = find_model(reference, name)
    model = read_model(file)
    policy, spec = model.make_policy(), model.spec
    if name not in (None, spec.name):
        raise RunError(f"{file.path} is a policy of {spec.name}, not of {name}")
    check_decides(file.path, policy, spec)
    return LoadedPolicy(policy, spec, own_terms(spec, str(file.path)), file.path, max(0, model.update.step), seed)
