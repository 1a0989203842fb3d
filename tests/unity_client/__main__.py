"""The stand-in Unity as a program: what `unity_build.x86_64` runs."""

import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

sys.path[0] = str(ROOT / "tests")
sys.path.append(str(ROOT))


def find_without_init(package: str, folder: Path) -> None:
    """Let modules in a package be imported without its `__init__`, whose imports take twice as long as all others."""
    spec = ModuleSpec(package, None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    sys.modules[package] = module_from_spec(spec)


find_without_init("headrace", ROOT / "headrace")
find_without_init("headrace.stages", ROOT / "stages")
find_without_init("headrace.stages.environments", ROOT / "stages" / "environments")

from unity_client.main import main  # noqa: E402 - the two folders above are what it's found in

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
