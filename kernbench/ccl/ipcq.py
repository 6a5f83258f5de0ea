"""The inter-PE communication queue: what a transfer costs.

A queue is ``n_slots`` slots of ``slot_size`` bytes in the receiver's memory. A transfer is cut into messages of one slot
each. A message passes four stages:

    send       queue unit's overhead, then the DMA streams source memory -> route -> slot
    fly        link latencies; each hop after the first forwards a virtual-channel chunk once it has all of it
    consume    queue unit's overhead, then slot (+ local operand, when it reduces) -> destination memory
    credit     the slot is free again once ``ipcq_credit_size_bytes`` have come back, on a path beside the links

Messages pipeline: one leaves every ``period``, the slowest stage. With too few slots the sender runs out of credit: then
``n_slots`` messages leave per round trip, plus what the backpressure policy costs: ``sleep`` pays a wake-up, ``poll``
notices at its next look and keeps its PE busy meanwhile. Service times are constant within a transfer, so this closed
form equals the message-by-message recurrence (which a test runs).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernbench.ccl.config import AlgorithmConfig
from kernbench.topology import Topology

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class QueueCosts:
    """Costs of one system and one configuration, per queue (one PE at each end).

    Attributes:
        queues: queues that work side by side on one transfer; each carries ``1 / queues`` of it.
        send_overhead: seconds per message, at each end.
        source_bandwidth: bytes/s at which a PE reads the source (HBM).
        slot_bandwidth: bytes/s of the slots' memory; a slot is written and read, so it carries every byte twice.
        consume_bandwidth: bytes/s at which a PE moves a slot to its destination.
        reduce_bandwidth: bytes/s at which it does so with a reduction.
        memory_latency: seconds of latency of source and slot together.
        consume_latency: seconds of latency of slot and destination together.
        credit_latency: seconds for a credit to come back.
        penalty: seconds that a blocked sender loses beyond the credit's return (``sleep``).
        poll_interval: seconds between two looks (``poll``), 0 for ``sleep``.
    """

    queues: int
    send_overhead: float
    source_bandwidth: float
    slot_bandwidth: float
    consume_bandwidth: float
    reduce_bandwidth: float
    memory_latency: float
    consume_latency: float
    credit_latency: float
    penalty: float
    poll_interval: float
    n_slots: int
    slot_size: int
    vc_chunk_size: int
    credit_size: int

    @classmethod
    def of(cls, topology: Topology, config: AlgorithmConfig, dtype: str) -> QueueCosts:
        """The costs of ``config`` on a system, reducing elements of ``dtype``."""
        device, ipcq = topology.device, topology.system.ipcq
        slot = device.memory_port(config.buffer_kind)
        hbm = device.memory_port("hbm")
        vector = device.vector_rate(dtype) / device.pes * _ELEMENT_BYTES.get(dtype, 4)
        sleeps = config.backpressure == "sleep"
        return cls(
            queues=ipcq.queues,
            send_overhead=ipcq.message_overhead,
            source_bandwidth=hbm.bandwidth,
            slot_bandwidth=slot.bandwidth,
            consume_bandwidth=min(slot.bandwidth, hbm.bandwidth),
            reduce_bandwidth=min(
                slot.bandwidth, hbm.bandwidth / 2, vector
            ),  # reads the local operand, writes the result
            memory_latency=hbm.latency + slot.latency,
            consume_latency=slot.latency + hbm.latency,
            credit_latency=ipcq.credit_latency,
            penalty=ipcq.wakeup_latency if sleeps else 0.0,
            poll_interval=0.0 if sleeps else ipcq.poll_interval,
            n_slots=config.n_slots,
            slot_size=config.slot_size,
            vc_chunk_size=config.vc_chunk_size,
            credit_size=config.ipcq_credit_size_bytes,
        )

    def transfer(
        self, nbytes: FloatArray, bandwidth: FloatArray, latency: FloatArray, hops: FloatArray, reduces: bool
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Cost of transfers of ``nbytes`` over routes of given bandwidth (bytes/s), latency (s) and number of links.

        Returns ``(serial, latency, polling)``, seconds each: how long the transfer holds its queue, from its last byte
        sent to the data being in place, and how long the sending PE polled.
        """
        share = np.asarray(nbytes, dtype=np.float64) / self.queues
        wire = bandwidth / self.queues
        before_last = np.maximum(np.ceil(share / self.slot_size) - 1.0, 0.0)
        last = share - before_last * self.slot_size
        fly = latency + self.memory_latency + np.maximum(hops - 1.0, 0.0) * (
            np.minimum(self.vc_chunk_size, np.minimum(share, self.slot_size)) / wire
        )  # fmt: skip

        send_full, consume_full = self._stages(np.minimum(share, self.slot_size), wire, reduces)
        period = np.maximum(
            np.maximum(send_full, consume_full), 2.0 * np.minimum(share, self.slot_size) / self.slot_bandwidth
        )
        round_trip = (
            send_full + fly + consume_full + self.consume_latency + self.credit_latency + self.credit_size / wire
        )
        window = self.n_slots * period
        starved = round_trip > window
        wait = np.where(starved, round_trip - window, 0.0)
        if self.poll_interval:
            lost = np.ceil(wait / self.poll_interval) * self.poll_interval - wait
        else:
            lost = np.where(starved, self.penalty, 0.0)
        turns = np.floor(before_last / self.n_slots)
        blocked = turns * (wait + lost)
        send_last, consume_last = self._stages(last, wire, reduces)
        serial = before_last * period + blocked + send_last
        polling = blocked if self.poll_interval else np.zeros_like(blocked)
        empty = share == 0.0  # nothing to send, but the round still synchronises the two
        return (
            np.where(empty, self.send_overhead, serial),
            np.where(empty, latency, fly + self.consume_latency + consume_last),
            polling,
        )

    def _stages(self, nbytes: FloatArray, wire: FloatArray, reduces: bool) -> tuple[FloatArray, FloatArray]:
        """Seconds of the send and the consume stage of one message."""
        streaming = np.minimum(np.minimum(wire, self.source_bandwidth), self.slot_bandwidth)
        consuming = self.reduce_bandwidth if reduces else self.consume_bandwidth
        return (
            self.send_overhead + nbytes / streaming,
            self.send_overhead + nbytes / consuming,
        )


_ELEMENT_BYTES = {"fp64": 8, "int64": 8, "fp32": 4, "int32": 4, "fp16": 2, "bf16": 2, "int16": 2, "int8": 1, "fp8": 1}
