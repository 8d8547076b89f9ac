"""Runs ``python -m benchmarks.overhead`` from any folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.overhead.__main__ import main

main()
