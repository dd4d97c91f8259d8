"""The `plmia` command; configuration stops here."""

from __future__ import annotations

from importlib import import_module
from keyword import iskeyword
from typing import Any

import click

from plmia import __version__
from plmia.auditing.progress import stderr
from plmia.cli.interruption import interruptible
from plmia.cli.start import INTERRUPTED
from plmia.cli.terminal import say
from plmia.data.user_code import message_of
from plmia.errors import PlmiaError, TrainingError, did_you_mean, shown

# Commands by name: the module that holds each, imported when the command is run, and a description.
COMMANDS = {
    "demo": ("audit", "Run a whole audit on data that ships with scikit-learn."),
    "audit": ("audit", "Train a target and its references, and run every attack."),
    "design": ("design", "Choose who trains on what, for a script of your own."),
    "score": ("score", "Run attacks on signals that exist already."),
    "screen": ("screen", "Screen one model without references."),
    "report": ("report", "Write the report of results that exist already."),
    "compare": ("compare", "Compare audits, or attacks of one audit, with tests."),
    "gate": ("gate", "Fail if an audited model may leak more than allowed."),
    "plan": ("plan", "Split a budget among references and views, from a pilot."),
    "import": ("import_", "Make a signals file of what another tool left."),
    "attacks": ("score", "List the attacks."),
    "reproduce": ("reproduce", "Run the paper's experiments from a checkout."),
    "completion": ("completion", "Print a script for completion with the Tab key."),
}

# Characters of a message on the value of an option.
_LONGEST_REFUSAL = 300


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
        attribute = f"{name}_" if iskeyword(name) else name
        command = getattr(import_module(f"plmia.cli.commands.{COMMANDS[name][0]}"), attribute)
        return command if isinstance(command, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; suggest the nearest one if there is no such command."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(f"there is no command {args[0]!r}: {did_you_mean(args[0], COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one whole line about each command."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, description) for name, (_, description) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            with interruptible():
                return super().invoke(ctx)
        except (KeyboardInterrupt, ImportError) as error:
            if not _is_interrupt(error):
                raise
            say("stopped; run the same command again to continue")
            ctx.exit(INTERRUPTED)
        except click.MissingParameter:
            raise  # click prints how the command is used, too
        except click.BadParameter as error:
            say(_refusal(error))
            ctx.exit(2)
        except PlmiaError as error:
            # A traceback of the user's own code stands before the sentence.
            if isinstance(error, TrainingError) and error.trace:
                stderr().print(error.trace.rstrip(), markup=False, soft_wrap=True)
            say(str(error))
            # A command may say what an interruption left: it raises while it handles that.
            ctx.exit(INTERRUPTED if isinstance(error.__context__, KeyboardInterrupt) else 2)
        except MemoryError as error:
            reason = f" ({shown(text)})" if (text := message_of(error)) else ""
            say(f"there is not enough memory{reason}: give less data, or --memory to score, report and compare")
            ctx.exit(2)


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether an error is Ctrl-C, which compiled modules turn into an ImportError if it comes while they start."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _refusal(error: click.BadParameter) -> str:
    """One sentence about the value of an option, long values cut."""
    text = error.format_message().rstrip(".")
    if len(text) > _LONGEST_REFUSAL:
        text = f"{text[: _LONGEST_REFUSAL // 2]}...{text[-_LONGEST_REFUSAL // 2 :]}"
    command = "plmia" if error.ctx is None else f"plmia {error.ctx.info_name}"
    return f"{text[:1].lower()}{text[1:]}: see {command} --help"


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="plmia")
def main() -> None:
    """Audit machine-learning models for membership leakage, with error rates that hold.

    \b
    Examples:
      plmia demo -o demo-out                            a whole audit, in a minute
      plmia audit --data data.npz --recipe mlp -o run   train models and attack them
      plmia score signals.npz -o out                    every attack on signals that exist already
      plmia gate run --max-tpr 0.02 --at-fpr 0.001      exit code 3 if the model leaks more than that
      plmia compare before after                        whether a defence helped, with paired tests
    """  # noqa: D301 - click wants the control character itself
