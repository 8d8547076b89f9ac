"""The reference: a page for each command, from what ``--help`` says.

``python docs/commands_page.py`` writes it into ``docs/commands`` of the current directory.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from fusioncache.cli.main import main as group

_INDEX = "README.md"
_NAME = "fusioncache"


def make_pages() -> dict[str, str]:
    """Returns the text of each page, by the name of its file."""
    context = click.Context(group, info_name=_NAME)
    commands = {name: _command(context, name) for name in group.list_commands(context)}
    found = {f"{name}.md": _page(command, click.Context(command, context, name)) for name, command in commands.items()}
    return {_INDEX: _index(context, commands), **found}


def write_pages(folder: Path) -> None:
    """Writes all pages, and removes those of commands that are gone."""
    folder.mkdir(parents=True, exist_ok=True)
    found = make_pages()
    for path in folder.glob("*.md"):
        if path.name not in found:
            path.unlink()
    for name, text in found.items():
        (folder / name).write_text(text)


def _command(context: click.Context, name: str) -> click.Command:
    command = group.get_command(context, name)
    assert command is not None  # it was listed
    return command


def _index(context: click.Context, commands: dict[str, click.Command]) -> str:
    rows = [f"| [{name}]({name}.md) | {command.get_short_help_str(200)} |" for name, command in commands.items()]
    table = ["| command | what it does |", "| --- | --- |", *rows]
    return _join([f"# {_NAME}", *_help(group), "\n".join(table), *_options(group, context)])


def _page(command: click.Command, context: click.Context) -> str:
    usage = command.get_usage(context).removeprefix("Usage: ").replace("\n", " ")
    own = [f"```\n{' '.join(usage.split())}\n```", *_help(command), *_options(command, context)]
    return _join([f"# {_NAME} {context.info_name}", *own, *_list_parts(command, context)])


def _list_parts(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yields the page of each command of a group, without its options' --help."""
    for name, part in sorted(command.commands.items()) if isinstance(command, click.Group) else ():
        rest = _page(part, click.Context(part, context, name)).partition("\n")[2]
        yield f"## {context.info_name} {name}\n{rest.rstrip().replace('\n## ', '\n### ')}"


def _help(command: click.Command) -> list[str]:
    """Returns the paragraphs of the help: running text, and as code the examples, which --help leaves as they are."""
    parts = []
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("\b\n"):
            title, _, lines = paragraph.removeprefix("\b\n").partition("\n")
            parts += [f"## {title.rstrip(':')}", f"```\n{inspect.cleandoc(lines)}\n```"]
        else:
            parts.append(_text(" ".join(paragraph.split())))
    return parts


def _options(command: click.Command, context: click.Context) -> list[str]:
    options = [param for param in command.get_params(context) if isinstance(param, click.Option)]
    records = [option.get_help_record(context) for option in options]
    rows = [f"| `{names.replace('|', '/')}` | {_text(about)} |" for names, about in filter(None, records)]
    return ["## Options", "\n".join(["| option | meaning |", "| --- | --- |", *rows])]


def _text(text: str) -> str:
    """Escapes running text, so that nothing in it is markup."""
    for mark in ("\\", "|", "<", "*"):
        text = text.replace(mark, f"\\{mark}")
    return text


def _join(parts: Sequence[str]) -> str:
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs/commands"))
