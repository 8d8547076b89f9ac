"""Differences between the supported versions of Thunder."""

import thunder
from thunder.core import jit_ext

VERSION = thunder.__version__
IS_FIRST = VERSION.startswith("0.2.6")
"""True for the first of the supported versions."""
HAS_MINIMUM = min in jit_ext._general_jit_lookaside_map
"""True if ``min`` and ``max`` are operations: then they take two values and no key."""
