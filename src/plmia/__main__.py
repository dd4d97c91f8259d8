"""``python -m plmia``: the command."""

try:
    from plmia.cli.start import run
except KeyboardInterrupt:  # nothing has begun yet
    raise SystemExit(130) from None

run()
