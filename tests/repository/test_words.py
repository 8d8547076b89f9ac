"""The words that users read: in what commands print, in reasons and warnings, in tables of notebooks and the report."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from repository import PACKAGE, ROOT

from fusioncache.observe.record.stats import Stats

_PRIVATE = (
    r"nobody|somebody|anybody|whoever|vouch\w*|nursery|offspring|lessons?|witness\w*|bystanders?|tenants?|promise\w*"
    r"|foretold|foresight|indifferen\w*|movers?"
)
_PRIVATE_IN_CODE = re.compile(rf"(?:\b|_)(?:{_PRIVATE}|bury|what it is that)(?:\b|_)", re.IGNORECASE)
"""Words that no code, comment or document of the package has."""
_BANNED = re.compile(
    rf"\b(?:{_PRIVATE}|bur(?:y|ied)|handed over|taken out|took the place of|was there before"
    r"|(?:its|their) own sizes|general hits?|kept code|not kept|keeps nothing|lies? over each other|travel together"
    r"|beside collectives|is told to)\b",
    re.IGNORECASE,
)
"""Private words, and phrases for which the field has a term. ``docs/glossary.md`` has the terms."""


def _list_literals(path: Path) -> Iterator[tuple[str, str]]:
    """Yields where each text of a module is that is not for those who change it: all but docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield f"{path.relative_to(ROOT)}:{node.lineno}", node.value


def _list_texts() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield from ((where, text) for where, text in _list_literals(path) if " " in text)
    for pattern in ("fusioncache/report/page/*.html", "docs/api.md", "docs/commands/*.md", "tests/cli/golden/*.txt"):
        yield from ((str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")) for path in ROOT.glob(pattern))
    reasons = {"reason": 1}
    stats = Stats(
        bypasses=reasons, own_sizes=reasons, taken_out=reasons, unkept=reasons, programs_refused=reasons,
        passes_repeated=reasons, programs_interpreted=reasons, not_captured=reasons, captures=1, verified=1,
    )  # fmt: skip
    yield "Stats as HTML", stats._repr_html_()


def test_users_read_the_terms_of_the_field():
    texts = list(_list_texts())
    assert {"random numbers", "in-place effects"} <= {text for _, text in texts}
    assert not [f"{where}: {word[0]}" for where, text in texts for word in _BANNED.finditer(text)]
    assert _BANNED.search("Not kept: busy") and _PRIVATE_IN_CODE.search("find_promise(values)")


def test_the_code_and_the_documents_have_the_terms_of_the_field():
    patterns = ("fusioncache/**/*.py", "*.md", "docs/**/*.md", "benchmarks/**/*.py")
    for path in (path for pattern in patterns for path in ROOT.glob(pattern)):
        found = _PRIVATE_IN_CODE.search(path.read_text(encoding="utf-8"))
        assert not found, f"{path.relative_to(ROOT)}: {found[0]}"
