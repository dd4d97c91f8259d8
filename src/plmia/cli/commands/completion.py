"""`plmia completion`: the script that lets a shell complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from plmia.errors import PlmiaError

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script that makes SHELL complete plmia's commands and options with the Tab key.

    To install it for good, add the line for your shell to its start-up file: ~/.bashrc or ~/.zshrc; fish reads files
    in ~/.config/fish/completions.

    \b
    Examples:
      plmia completion bash                                               print the script
      eval "$(plmia completion bash)"                                     a line for ~/.bashrc
      eval "$(plmia completion zsh)"                                      a line for ~/.zshrc
      plmia completion fish > ~/.config/fish/completions/plmia.fish       once, for fish
    """  # noqa: D301 - click wants the control character itself
    maker = get_completion_class(shell)
    if maker is None:
        raise PlmiaError(f"this version of click knows no completion for {shell}: install click 8.1 or later")
    click.echo(maker(ctx.find_root().command, {}, "plmia", "_PLMIA_COMPLETE").source())
