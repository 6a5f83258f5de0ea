"""Virtual time and values: the engine, streams, links, the op log, memories and the data executor."""

from kernbench.sim_engine.condition import Condition
from kernbench.sim_engine.data_executor import DataExecutor
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.memory_store import Allocation, MemoryStore
from kernbench.sim_engine.op_log import Operand, OpLog, OpRecord
from kernbench.sim_engine.operation import Operation, Stream
from kernbench.sim_engine.plan import TransferPlan, evaluate

__all__ = [
    "Allocation",
    "Condition",
    "DataExecutor",
    "GraphEngine",
    "MemoryStore",
    "OpLog",
    "OpRecord",
    "Operand",
    "Operation",
    "Stream",
    "TransferPlan",
    "evaluate",
]
