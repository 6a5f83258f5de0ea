"""What the benches of this package share beside :mod:`kernbench.benching`: sizes, inputs and their oracle, tables, progress."""
