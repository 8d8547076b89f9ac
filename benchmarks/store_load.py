"""The command of ``benchmarks.store.__main__`` as a script, which starts in any folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.store.__main__ import main

main()
