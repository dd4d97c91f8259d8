"""The command: options, terminal output and progress."""
