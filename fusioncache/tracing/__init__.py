"""Shortcuts in Thunder's own tracing, for the whole process: ``install`` puts them in, ``uninstall`` takes them out.

    import fusioncache
    fusioncache.tracing.install()
    fusioncache.tracing.uninstall()

``FusionCache(fast_tracing=True)``, which is the default, calls ``install`` with the groups ``BY_DEFAULT``.
"""

from fusioncache.tracing.installation import BY_DEFAULT, install, uninstall

__all__ = ["BY_DEFAULT", "install", "uninstall"]
