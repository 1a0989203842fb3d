"""The log states how a trainer's gradients are computed."""

from headrace.stages.trainer.fast.choice import in_words


def test_the_log_states_if_nothing_is_compiled():
    assert "if it finds a C compiler" in in_words(has_kernels=False)
    assert "if it finds a C compiler" not in in_words(has_kernels=True)
