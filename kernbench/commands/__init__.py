"""What the command ``kernbench`` does: a module per subcommand."""
