"""Options of a run: a frozen record of their values, whose fields are the rows of one table."""

from kernbench.options.record import Option as Option
from kernbench.options.record import changed as changed
from kernbench.options.record import command_line as command_line
from kernbench.options.record import options_of as options_of
from kernbench.options.run import RunOptions as RunOptions
from kernbench.options.simulate import SimulateOptions as SimulateOptions
