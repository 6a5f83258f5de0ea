"""Collectives: configuration, schedules, queues, algorithms."""

from kernbench.ccl.reduce_op import ReduceOp
from kernbench.ccl.schedule import Schedule, ScheduleBuilder

__all__ = ["ReduceOp", "Schedule", "ScheduleBuilder"]
