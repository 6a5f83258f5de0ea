"""Subcommands of the ``kernbench`` command, a module each; one is imported when it is called."""
