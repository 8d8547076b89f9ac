"""Runs ``python -m benchmarks.overhead.canonical`` from any folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.overhead.canonical import main

main()
