from __future__ import annotations

import sys

import pytest

from headrace.config import ConfigError, load_config, tables
from headrace.config.tables import Table, import_plugins


@pytest.fixture(autouse=True)
def _plugins_unknown():
    """Installed packages are looked for again, and modules of these tests are forgotten: other processes lack them."""
    adders = dict(tables._adders)
    tables._import_plugins.cache_clear()
    yield
    tables._import_plugins.cache_clear()
    tables._adders.clear()
    tables._adders.update(adders)


def test_modules_of_another_process_are_imported_once(tmp_path, monkeypatch):
    (tmp_path / "kinds_of_mine.py").write_text(
        f"from {__name__} import TABLE\nTABLE['mine'] = TABLE.get('mine', 0) + 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    import_plugins(["kinds_of_mine"])
    import_plugins(["kinds_of_mine"])

    assert TABLE["mine"] == 1


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("", r"^a notebook, or code without a file, added kinds to tables, .*add the kinds in a module"),
        ("kinds_of_nobody", r"^kinds_of_nobody, which adds kinds to tables: ModuleNotFoundError: No module named"),
    ],
)
def test_plugins_that_other_processes_can_not_import_are_refused_by_name(module, message):
    with pytest.raises(ConfigError, match=message):
        import_plugins([module])


TABLE: Table[int] = Table()


def test_an_installed_packages_module_is_imported_if_a_name_is_missing(tmp_path, monkeypatch):
    info = tmp_path / "offering-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: offering\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[headrace.plugins]\nmore = kinds_of_theirs\n")
    (tmp_path / "kinds_of_theirs.py").write_text(f"from {__name__} import TABLE\nTABLE['theirs'] = 7\n")
    monkeypatch.syspath_prepend(tmp_path)

    assert "my_module:Class" not in TABLE
    assert "kinds_of_theirs" not in sys.modules, "a reference is found without a table"
    assert "theirs" in TABLE
    assert TABLE.get("theirs") == 7
    assert TABLE.get("nobody's") is None


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("1 / 0", "ZeroDivisionError: division by"),
        ("next(iter(()))", "StopIteration: "),
        ("import sys; sys.exit()", "SystemExit: "),
        ("raise KeyboardInterrupt", "KeyboardInterrupt: "),
        ("import asyncio; raise asyncio.CancelledError", "CancelledError: "),
    ],
)
def test_an_installed_package_whose_module_fails_is_named(statement, named, tmp_path, monkeypatch):
    info = tmp_path / "offering-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: offering\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[headrace.plugins]\nmore = broken_kinds\n")
    (tmp_path / "broken_kinds.py").write_text(statement)
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ConfigError, match=f"^'more' of the installed package offering: {named}"):
        TABLE.get("anything")


def test_modules_that_a_yaml_lists_are_imported_from_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "listed_kinds.py").write_text(f"from {__name__} import TABLE\nTABLE['listed'] = 1\n")
    (tmp_path / "run.yaml").write_text("plugins: [listed_kinds]\nbehaviors: {A: {}}\n")
    assert load_config(tmp_path / "run.yaml").plugins == ("listed_kinds",)
    assert TABLE["listed"] == 1


def test_a_listed_module_that_can_not_be_imported_is_named_with_its_line(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "broken_kinds.py").write_text("1 / 0\n")
    (tmp_path / "run.yaml").write_text("behaviors: {A: {}}\nplugins: [broken_kinds]\n")
    with pytest.raises(ConfigError, match=r"run.yaml:2: plugins.0: importing 'broken_kinds' raised ZeroDivisionError"):
        load_config(tmp_path / "run.yaml")
