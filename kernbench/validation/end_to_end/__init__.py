"""Training steps that others have measured and published, beside what is modelled of them. See ``docs/accuracy.md``."""
