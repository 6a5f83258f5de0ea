"""``python -m kernbench``: the ``kernbench`` command, where no script of that name is on the path."""

from kernbench.cli import main

if __name__ == "__main__":
    main()
