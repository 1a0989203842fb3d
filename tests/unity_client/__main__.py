"""The stand-in Unity as a program: what `unity_build.x86_64` runs."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])
sys.path.append(str(Path(__file__).resolve().parents[2]))

from unity_client.main import main  # noqa: E402 - the two folders above are what it's found in

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
