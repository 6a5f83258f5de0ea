"""Where the ranks' calls meet: collectives and messages, matched, checked and run."""
