"""Runs ``python -m benchmarks.hugging_face`` from any folder."""

import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
runpy.run_module("benchmarks.hugging_face", run_name="__main__")
