from __future__ import annotations

import gc
import sys

from headrace.pipeline.common.process import import_early, uncollected


def test_garbage_is_collected_again_after_imports_and_not_in_them():
    assert gc.isenabled()
    with uncollected():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.unfreeze()


def test_who_has_switched_collection_off_finds_it_off():
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
        gc.unfreeze()


def test_a_module_that_fails_stops_no_other(tmp_path, monkeypatch):
    (tmp_path / "breaks_at_import.py").write_text("1 / 0", encoding="utf-8")
    (tmp_path / "fine_at_import.py").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    import_early(["is_not_there_at_all", "breaks_at_import", "fine_at_import"])
    gc.unfreeze()
    assert "fine_at_import" in sys.modules
    del sys.modules["fine_at_import"]
