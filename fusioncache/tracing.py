"""Shortcuts in Thunder's tracing, for the whole process: ``install`` adds them, ``uninstall`` removes them.

    import fusioncache
    fusioncache.tracing.install()
    fusioncache.tracing.uninstall()

``FusionCache(fast_tracing=True)``, which is the default, calls ``install``.
"""

from fusioncache.thunder_adapter.installation import install, uninstall

__all__ = ["install", "uninstall"]
