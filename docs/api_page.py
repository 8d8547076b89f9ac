"""Writes ``docs/api.md``, the page of all public names, from their signatures and docstrings.

``python docs/api_page.py`` writes it. The code is read, never run, so that neither torch nor Thunder is imported.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import griffe

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "api.md"
_NAME = "fusioncache"
_BESIDE = (
    *(f"distributed.{name}" for name in ("fsdp", "ddp", "tensor_parallel", "CutError")),
    *(f"distributed.{name}" for name in ("state_dict", "optimizer_state_dict", "clip_grad_norm_")),
    *("tracing.install", "tracing.uninstall"),
)
"""Public names of public modules."""
_TITLES = {
    griffe.DocstringSectionKind.parameters: "Arguments",
    griffe.DocstringSectionKind.attributes: "Attributes",
    griffe.DocstringSectionKind.raises: "Raises",
}


def text() -> str:
    """The page: each name of ``fusioncache.__all__``, and those of public modules, with what classes have."""
    package = griffe.load(_NAME, search_paths=[ROOT], docstring_parser="google")
    names = [export if isinstance(export, str) else export.name for export in package.exports or ()]
    names += _BESIDE
    found = {name: _found(package, name) for name in names}
    contents = "\n".join(_line(name, what) for name, what in found.items())
    parts = [part for name, what in found.items() for part in _entry(what, name, "##")]
    return "\n\n".join(["# API", _about(), contents, *parts]) + "\n"


def _line(name: str, found: griffe.Object) -> str:
    """A name in the list of contents, with a link to its section."""
    return f"- [{name}](#{name.lower().replace('.', '')}): {_first_sentence(found)}"


def _about() -> str:
    return (
        "All public names, as `python docs/api_page.py` takes them from the code. What is not here may change in any "
        "release. The commands have a [reference](commands/README.md) of their own."
    )


def _found(package: griffe.Object | griffe.Alias, name: str) -> griffe.Object:
    """What stands behind a name of the package, which imports all that it exports."""
    member = package[name]
    return member.final_target if isinstance(member, griffe.Alias) else member


def _first_sentence(found: griffe.Object) -> str:
    return " ".join(_docstring(found).value.partition("\n\n")[0].split())


def _docstring(found: griffe.Object) -> griffe.Docstring:
    if found.docstring is None:
        raise ValueError(f"{found.path} is public and has no docstring")
    return found.docstring


def _entry(found: griffe.Object, name: str, level: str) -> list[str]:
    """A heading, the signature and the docstring; then the same for what a class has."""
    parts = [f"{level} {name}", f"```python\n{_signature(found, name)}\n```"]
    for section in _docstring(found).parsed:
        parts += _section(section)
    for member in _members(found):
        parts += _entry(member, f"{name}.{member.name}", level + "#")
    return parts


def _members(found: griffe.Object) -> Iterable[griffe.Object]:
    """The public methods and properties of a class, inherited ones too. Its attributes are in its docstring."""
    if not isinstance(found, griffe.Class):
        return ()
    members = [member for name, member in found.all_members.items() if not name.startswith("_")]
    targets = [member.final_target if isinstance(member, griffe.Alias) else member for member in members]
    own = [member for member in targets if isinstance(member, griffe.Object)]
    return [member for member in own if member.is_function or "property" in member.labels]


def _signature(found: griffe.Object, name: str) -> str:
    """As it is called; over several lines where one would be too long."""
    if isinstance(found, griffe.Attribute):
        return f"{name}: {found.annotation}"
    parameters = _parameters(found)
    returns = f" -> {found.returns}" if isinstance(found, griffe.Function) and found.returns else ""
    line = f"{name}({', '.join(parameters)}){returns}"
    if len(line) <= 100:
        return line
    return "\n".join([f"{name}(", *(f"    {parameter}," for parameter in parameters), f"){returns}"])


def _parameters(found: griffe.Object) -> list[str]:
    shown: list[str] = []
    for parameter in found.parameters if isinstance(found, griffe.Class | griffe.Function) else ():
        if parameter.name == "self":
            continue
        if parameter.kind is griffe.ParameterKind.keyword_only and "*" not in shown:
            shown.append("*")
        stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(
            parameter.kind, ""
        )
        annotation = f": {parameter.annotation}" if parameter.annotation else ""
        default = f" = {_default(str(parameter.default))}" if parameter.default and not stars else ""
        shown.append(f"{stars}{parameter.name}{annotation}{default}")
    return shown


def _default(code: str) -> str:
    """As it is written; griffe shows a dataclass's ``default_factory`` as a call of it, which says nothing."""
    return "..." if code.startswith(("(", "_")) else code.replace("'", '"')


def _section(section: griffe.DocstringSection) -> list[str]:
    if section.kind is griffe.DocstringSectionKind.text:
        return [section.value]
    items = [f"- `{_label(item)}`: {' '.join(item.description.split())}" for item in section.value]
    return [f"{_TITLES[section.kind]}:", "\n".join(items)]


def _label(item: griffe.DocstringElement) -> str:
    return str(getattr(item, "name", item.annotation))


if __name__ == "__main__":
    PAGE.write_text(text())
