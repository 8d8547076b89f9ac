"""Runs ``python -m benchmarks.prices`` from any folder."""

import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
runpy.run_module("benchmarks.prices", run_name="__main__")
