"""Runs ``python -m benchmarks.warm_start`` from any folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.warm_start.__main__ import main

main()
