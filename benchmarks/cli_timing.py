"""Runs ``python -m benchmarks.store.commands`` from any folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.store.commands import main

main()
