from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

import headrace
from headrace.stages.errors import LoadError
from headrace.stages.loading import load_attribute, load_plugin


@pytest.fixture(autouse=True)
def _leave_no_trace(monkeypatch):
    """Modules and path entries of one test are not there in the next."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_stages", raising=False)  # tests of other files may have left theirs
    known = set(sys.modules)
    yield
    for name in set(sys.modules) - known:
        del sys.modules[name]


def write(folder, **modules):
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)


def offer(folder, *entry_points, name="offering"):
    """An installed package's metadata, as pip leaves it."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("\n".join(["[headrace.stages]", *entry_points]))
    sys.path.append(str(folder))


def test_an_installed_module_is_loaded_without_a_folder():
    from collections import OrderedDict

    assert load_attribute("collections:OrderedDict", None, "stage") is OrderedDict


def test_a_module_next_to_the_yaml_is_loaded(tmp_path):
    write(tmp_path, my_stages="class Clip:\n    class Soft:\n        limit = 3\n")

    assert load_attribute("my_stages:Clip.Soft", tmp_path, "stage").limit == 3


def test_a_module_inside_a_package_next_to_the_yaml_is_loaded(tmp_path):
    (tmp_path / "my_package").mkdir()
    write(tmp_path / "my_package", __init__="", inner="from my_package.other import x\n", other="x = 5\n")

    assert load_attribute("my_package.inner:x", tmp_path, "stage") == 5


def test_a_module_in_the_working_directory_is_loaded_with_its_neighbours(tmp_path, monkeypatch):
    (tmp_path / "configs").mkdir()
    write(tmp_path, my_stages="from my_helper import x\n", my_helper="x = 4\n")
    monkeypatch.chdir(tmp_path)

    assert load_attribute("my_stages:x", tmp_path / "configs", "stage") == 4


def test_a_module_next_to_the_yaml_comes_before_one_in_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "configs").mkdir()
    write(tmp_path, my_stages="x = 'working directory'\n", my_other="x = 5\n")
    write(tmp_path / "configs", my_stages="x = 'beside'\n")
    monkeypatch.chdir(tmp_path)

    assert load_attribute("my_other:x", tmp_path / "configs", "stage") == 5
    assert load_attribute("my_stages:x", tmp_path / "configs", "stage") == "beside"


def test_a_user_module_can_import_its_neighbours_later(tmp_path):
    write(
        tmp_path,
        my_stages="import my_helper\ndef late():\n    import my_late_helper\n    return my_late_helper.x\n",
        my_helper="x = 1\n",
        my_late_helper="x = 2\n",
    )

    assert load_attribute("my_stages:my_helper.x", tmp_path, "stage") == 1
    assert load_attribute("my_stages:late", tmp_path, "stage")() == 2


def test_a_module_named_random_does_not_replace_python_s(tmp_path):
    write(tmp_path, random="raise RuntimeError('shadowed')\n", my_stages="import random\n")

    assert load_attribute("my_stages:random", tmp_path, "stage") is random


OURS_ONCE = ("config", "queues", "stages", "pipeline")


@pytest.mark.parametrize("name", OURS_ONCE)
def test_modules_with_the_names_of_our_folders_are_the_users(name, tmp_path, monkeypatch):
    """Also if a checkout of Headrace is on the path, for example by PYTHONPATH, perhaps under another name."""
    checkout = Path(headrace.__path__[0]).parent
    (tmp_path / "link").symlink_to(checkout)
    monkeypatch.syspath_prepend(checkout)
    monkeypatch.syspath_prepend(tmp_path / "link")
    write(tmp_path, **{name: "Thing = 'mine'\n"}, my_stages=f"from {name} import Thing\n")

    assert load_attribute(f"{name}:Thing", tmp_path, "stage") == "mine"
    assert load_attribute("my_stages:Thing", tmp_path, "stage") == "mine"


def test_an_installed_package_already_in_use_is_not_replaced_by_a_file_of_its_name(tmp_path):
    import numpy

    write(tmp_path, numpy="class Mine: pass\n")

    with pytest.raises(LoadError, match=r"numpy\.py was not used, because another module has the same name: rename it"):
        load_attribute("numpy:Mine", tmp_path, "stage")
    assert sys.modules["numpy"] is numpy


def test_another_folder_brings_its_own_module_of_the_same_name(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, my_stages=f"x = '{name}'\n")

    assert [load_attribute("my_stages:x", tmp_path / name, "stage") for name in ("one", "two")] == [
        "one",
        "two",
    ]


@pytest.mark.parametrize("what", ["my_stages", "my_stages:", ":Clip", "my stages:Clip", "a:b:c", "a/b.py:C", ""])
def test_a_text_of_another_form_is_refused(what, tmp_path):
    with pytest.raises(LoadError, match=r"^stage '.*': expected module:attribute, such as"):
        load_attribute(what, tmp_path, "stage")


def test_a_missing_module_is_reported_with_a_suggestion(tmp_path):
    write(tmp_path, my_stages="")

    with pytest.raises(LoadError) as caught:
        load_attribute("my_stagse:Clip", tmp_path, "stage")

    assert str(caught.value) == (
        f"stage 'my_stagse:Clip': no module named 'my_stagse' is in {tmp_path} or {Path.cwd()} or installed; did you "
        "mean 'my_stages'?"
    )


def test_a_missing_attribute_is_reported_with_a_suggestion(tmp_path):
    write(tmp_path, my_stages="import os\nclass ClipReward: pass\nclass _Hidden: pass\n")

    with pytest.raises(LoadError, match=r"my_stages\.py\) has no attribute 'ClipRewards'; did you mean 'ClipReward'\?"):
        load_attribute("my_stages:ClipRewards", tmp_path, "stage")
    with pytest.raises(LoadError, match=r"has no attribute 'Other'; it has: ClipReward$"):
        load_attribute("my_stages:Other", tmp_path, "stage")
    with pytest.raises(LoadError, match=r"'ClipReward' there has no attribute 'limit'"):
        load_attribute("my_stages:ClipReward.limit", tmp_path, "stage")


LAZY = """
__all__ = ["Broken", "Whole"]
def __getattr__(name):
    if name == "Broken":
        import not_installed_anywhere
    raise AttributeError(name)
"""


def test_a_name_of_a_lazy_module_whose_import_fails_is_reported_with_the_reason(tmp_path):
    write(tmp_path, my_stages=LAZY)

    with pytest.raises(LoadError, match=r"'Broken' of .*my_stages.* raised ModuleNotFoundError: .*installed_anywhere"):
        load_attribute("my_stages:Broken", tmp_path, "environment wrapper")


def test_a_module_that_raises_is_reported_with_the_users_own_line(tmp_path):
    write(tmp_path, my_stages="import json\n\nlimits = json.loads('{')\n")

    with pytest.raises(LoadError) as caught:
        load_attribute("my_stages:Clip", tmp_path, "stage")

    assert "importing 'my_stages' raised JSONDecodeError: Expecting property name" in str(caught.value)
    assert str(caught.value).endswith(f"(at {tmp_path / 'my_stages.py'}:3, in <module>)")
    assert type(caught.value.__cause__).__name__ == "JSONDecodeError"
    assert "my_stages" not in sys.modules


def test_a_missing_dependency_of_the_module_is_not_taken_for_the_module(tmp_path):
    write(tmp_path, my_stages="import not_installed_anywhere\n")

    with pytest.raises(
        LoadError, match=r"importing 'my_stages' raised ModuleNotFoundError: .*my_stages\.py:1, in <module>\)"
    ):
        load_attribute("my_stages:Clip", tmp_path, "stage")


def test_a_syntax_error_is_reported_with_its_line(tmp_path):
    write(tmp_path, my_stages="x = 1\ny = (\n")

    with pytest.raises(LoadError, match=r"raised SyntaxError: .*\(my_stages\.py, line 2\)"):
        load_attribute("my_stages:Clip", tmp_path, "stage")


def test_a_module_that_exits_on_import_is_reported(tmp_path):
    write(tmp_path, my_stages="import sys\nsys.exit(3)\n")

    with pytest.raises(LoadError, match="raised SystemExit: 3"):
        load_attribute("my_stages:Clip", tmp_path, "stage")


def test_a_plugin_is_found_by_its_short_name(tmp_path):
    write(tmp_path, offering_stages="class Clip: limit = 4\n")
    offer(tmp_path, "clip = offering_stages:Clip")

    assert load_plugin("headrace.stages", "clip").limit == 4


def test_a_missing_plugin_is_reported_with_what_is_offered(tmp_path):
    offer(tmp_path, "clip = offering_stages:Clip", "drop = offering_stages:Drop")

    with pytest.raises(LoadError, match=r"write module:Class; did you mean 'clip'\?$"):
        load_plugin("headrace.stages", "clipp")
    with pytest.raises(LoadError, match=r"to name a class .* write module:Class; offered: clip, drop"):
        load_plugin("headrace.stages", "zzz")


def test_a_plugin_that_two_packages_offer_is_refused(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        offer(tmp_path / name, f"clip = {name}_stages:Clip", name=name)

    with pytest.raises(LoadError, match=r"different objects with this name \(one_stages:Clip, two_stages:Clip\)"):
        load_plugin("headrace.stages", "clip")


def test_a_plugin_whose_module_is_broken_is_reported(tmp_path):
    write(tmp_path, offering_stages="x = 1 / 0\n")
    offer(tmp_path, "clip = offering_stages:Clip", "gone = offering_gone:Clip")

    with pytest.raises(
        LoadError,
        match=r"importing 'offering_stages' raised ZeroDivisionError: division by zero .at .*offering_stages.py:1, in",
    ):
        load_plugin("headrace.stages", "clip")
    with pytest.raises(LoadError, match="no module named 'offering_gone' is installed"):
        load_plugin("headrace.stages", "gone")
