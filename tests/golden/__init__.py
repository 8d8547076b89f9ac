"""A safety net for refactorings: programs of real models as texts, compared with the committed texts.

``make golden`` compares, ``make golden REWRITE=1`` rewrites. ``texts.py`` says what the texts leave out.
"""
