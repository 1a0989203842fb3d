from __future__ import annotations

import gc
import sys

from headrace.pipeline.common.process import import_early


def test_a_module_that_fails_stops_no_other(tmp_path, monkeypatch):
    (tmp_path / "breaks_at_import.py").write_text("1 / 0", encoding="utf-8")
    (tmp_path / "fine_at_import.py").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    import_early(["is_not_there_at_all", "breaks_at_import", "fine_at_import"])
    gc.unfreeze()
    assert "fine_at_import" in sys.modules
    del sys.modules["fine_at_import"]
