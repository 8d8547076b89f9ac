"""The command completion: what a shell needs to complete commands, options and ids."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script for completion in SHELL. It completes commands, options and IDs.

    IDs come from the record and the store at the moment of completion.

    \b
    Examples:
        fusioncache completion bash >> ~/.bashrc
        fusioncache completion zsh >> ~/.zshrc
        fusioncache completion fish > ~/.config/fish/completions/fusioncache.fish
    """
    from click.shell_completion import get_completion_class

    from fusioncache.cli.main import main

    completer = get_completion_class(shell)
    assert completer is not None  # click knows these three
    click.echo(completer(main, {}, "fusioncache", "_FUSIONCACHE_COMPLETE").source())
