"""A net under refactorings: what is made of real models, printed, and held against what is committed.

``make golden`` compares, ``make golden REWRITE=1`` writes anew. ``texts.py`` says what is left out of the texts.
"""
