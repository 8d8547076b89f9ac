"""What the supported versions of Thunder do differently."""

import thunder
from thunder.core import jit_ext

VERSION = thunder.__version__
IS_FIRST = VERSION.startswith("0.2.6")
"""Whether this is the first of the supported versions."""
HAS_MINIMUM = min in jit_ext._general_jit_lookaside_map
"""Whether ``min`` and ``max`` are operations: then they take two values and no key."""
