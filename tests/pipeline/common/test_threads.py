"""The variables that bound the threads of numeric libraries."""

from __future__ import annotations

from headrace.pipeline.common.process import use_one_thread


def test_numeric_libraries_use_one_thread_unless_the_user_has_set_another_number():
    environment = {"OMP_NUM_THREADS": "4"}
    use_one_thread(environment)
    assert environment == {
        "OMP_NUM_THREADS": "4",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "NUMEXPR_NUM_THREADS": "1",
    }
