"""The `plmia` command; configuration stops here."""

from __future__ import annotations

from importlib import import_module
from keyword import iskeyword
from typing import Any

import click

from plmia import __version__
from plmia.cli.terminal import stderr
from plmia.errors import PlmiaError

# Commands by name and the module that holds them, imported when the command is run.
COMMANDS = {
    "score": "plmia.cli.commands.score",
    "attacks": "plmia.cli.commands.score",
    "import": "plmia.cli.commands.import_",
    "audit": "plmia.cli.commands.audit",
    "demo": "plmia.cli.commands.audit",
    "plan": "plmia.cli.commands.plan",
    "gate": "plmia.cli.commands.gate",
    "report": "plmia.cli.commands.report",
    "compare": "plmia.cli.commands.compare",
    "reproduce": "plmia.cli.commands.reproduce",
    "completion": "plmia.cli.commands.completion",
}

# What shells expect of a command that Ctrl-C ended: 128 and the signal's number.
INTERRUPTED = 130


class Commands(click.Group):
    """Commands that are imported on use; bad input ends them with one sentence and exit code 2, Ctrl-C with 130."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import a command."""
        del ctx
        if name not in COMMANDS:
            return None
        # No function can be called `import`.
        command = getattr(import_module(COMMANDS[name]), f"{name}_" if iskeyword(name) else name)
        return command if isinstance(command, click.Command) else None

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            _say("stopped; run the same command again to go on")
            ctx.exit(INTERRUPTED)
        except PlmiaError as error:
            # One line, whatever a user's own file or path puts into the message; a traceback of the user's own code
            # stands before it.
            trace = getattr(error, "trace", "")
            if trace:
                stderr().print(trace.rstrip(), markup=False, soft_wrap=True)
            _say(" ".join(str(error).split()))
            # A command may tell what an interruption left: it says so while it handles that.
            ctx.exit(INTERRUPTED if isinstance(error.__context__, KeyboardInterrupt) else 2)


def _say(sentence: str) -> None:
    stderr().print(f"plmia: {sentence}", markup=False, soft_wrap=True)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="plmia")
def main() -> None:
    """Audit machine-learning models for membership leakage, with error rates that hold.

    \b
    Examples:
      plmia demo -o demo-out              a whole audit, in a minute
      plmia audit --data data.npz --recipe mlp -o run
      plmia score signals.npz -o out      every attack on signals that exist already
      plmia import lira exp -o signals.npz              signals of what LiRA's code or another tool left
      plmia attacks                       what can be run
      plmia plan run                      how many references, views and records the next audit should have
      plmia gate run --max-tpr 0.02 --at-fpr 0.001      exit code 3 if the model leaks more than that
      plmia compare before after          whether a defence helped, with paired tests
    """  # noqa: D301 - click wants the control character itself
