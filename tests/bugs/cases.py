"""Which bug each program is, where it was told of, and what a run must say of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

import kernbench
from tests.bugs import call_programs as calls
from tests.bugs import collective_programs as many
from tests.bugs import memory_programs as one
from tests.bugs import state_programs as states
from tests.bugs import stream_programs as streams


@dataclass(frozen=True)
class Bug:
    """A program of one of the modules.

    Attributes:
        issue: where it was told of.
        error: what the wrong program raises; None: a run says nothing (docs/bugs.md says why).
        says: a part of the report.
        mark: ends the line that the report must name; empty: torch's own error names no line.
        races: whether it is found with races only.
        ranks: that run it.
        sets_device: whether each rank first makes its GPU the current one.
        options: of the simulation.
        remark: a part of what the summary says of it, if it raises nothing.
    """

    program: Callable[[bool], None]
    issue: str
    error: type[BaseException] | None
    says: str = ""
    mark: str = "here"
    races: bool = False
    ranks: int = 2
    sets_device: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    remark: str = ""


_MISMATCH, _DEADLOCK = kernbench.CollectiveMismatchError, kernbench.DeadlockError
_ACCESS, _RACE, _ROOM = kernbench.MemoryAccessError, kernbench.RaceError, torch.OutOfMemoryError

BUGS = (
    Bug(many.metrics_with_other_names, "Lightning-AI/pytorch-lightning#19106", _MISMATCH, "rank 0: all_reduce"),
    Bug(many.loss_reduced_by_one_rank, "huggingface/trl#296", _DEADLOCK, "Rank 1 never will: it has ended"),
    Bug(many.group_of_each_nodes_own_ranks, "sgl-project/sglang#15805", _MISMATCH, "new_group(ranks [2, 3])", ranks=4),
    Bug(many.group_made_by_its_members, "dylanyunlon/Neuron_SP#589", None, ranks=4),
    Bug(many.state_dict_of_one_rank, "huggingface/accelerate#3250", _MISMATCH, "rank 1: barrier"),
    Bug(many.norm_of_one_rank, "dylanyunlon/Neuron_SP#589", _MISMATCH, "rank 1: barrier"),
    Bug(many.lengths_that_differ, "Theano/libgpuarray#425", _MISMATCH, "(shape differ)"),
    Bug(many.sums_that_differ_in_size, "NVIDIA/nccl#1417", _MISMATCH, "(shape differ)"),
    Bug(many.message_in_a_batch_on_one_side, "pytorch/pytorch#120741", _DEADLOCK, "but the two never meet"),
    Bug(many.messages_of_two_types, "pytorch/pytorch#110408", _MISMATCH, "the same dtype and number of elements"),
    Bug(many.column_summed_by_gloo, "pytorch/pytorch#192920", ValueError, "all_reduce of gloo was given", mark=""),
    Bug(many.rank_that_calls_another_collective, "ROCm/rccl#429", _MISMATCH, "rank 2: all_gather", ranks=4),
    Bug(many.both_send_first, "NVIDIA/nccl#479", _DEADLOCK, "rank 0 -> rank 1 -> rank 0"),
    Bug(many.stages_that_send_before_they_receive, "pytorch/pytorch#172668", _DEADLOCK, "rank 0 -> rank 1 -> rank 0"),
    Bug(many.all_that_is_received_in_one_batch, "pytorch/PiPPy#969", _DEADLOCK, "rank 1 -> rank 2 -> rank 1", ranks=3),
    Bug(many.batches_that_differ_in_number, "dmlc/dgl#2539", _DEADLOCK, "Rank 0 never will: it has ended"),
    Bug(many.validation_that_begins_early, "lifeiteng/vall-e#93", _MISMATCH, "(shape differ)"),
    Bug(many.parameters_without_gradients, "speechbrain/speechbrain#2340", RuntimeError, "find_unused_parameters", mark=""),
    Bug(many.last_step_without_gradients, "pytorch/pytorch#128949", None),
    Bug(many.accumulated_without_the_last, "modelscope/FunASR#3472", None),
    Bug(many.expert_without_tokens, "PaddlePaddle/PaddleFormers#3010", _MISMATCH, "rank 0: all_to_all"),
    Bug(many.batch_that_is_skipped, "dylanyunlon/Neuron_SP#589", _DEADLOCK, "Rank 1 never will: it has ended"),
    Bug(many.ranks_on_one_gpu, "pytorch/pytorch#15051", dist.DistBackendError, "duplicate GPU", sets_device=False),
    Bug(many.norm_on_the_host, "dylanyunlon/Neuron_SP#151", RuntimeError, "No backend type associated with device type cpu",
        mark=""),
    Bug(many.barrier_on_the_first_gpu, "pytorch/pytorch#124714", kernbench.KernbenchError, "duplicate GPU", sets_device=False),
    Bug(many.experts_by_each_ranks_data, "huggingface/transformers#30277", _MISMATCH, "rank 1: reduce_scatter"),
    Bug(many.layer_of_some_ranks_batches, "2U1/Phi3-Vision-Finetune#41", _MISMATCH, "rank 0: all_gather"),
    Bug(many.barrier_of_all_but_one, "pytorch/pytorch#138322", _DEADLOCK, "Rank 3 never will: it has ended", ranks=4),
    Bug(many.group_destroyed_after_an_error, "pytorch/torchtitan#1342", ValueError, "no such batch", mark=""),
    Bug(many.preparation_longer_than_the_timeout, "hiyouga/LlamaFactory#360", dist.DistBackendError,
        "Timed out waiting 600000ms (virtual time) for barrier"),
    Bug(many.columns_sent_as_they_are, "intel/torch-xpu-ops#2161", ValueError, "non-overlapping and dense", mark=""),
    Bug(many.one_tensor_for_all_results, "pytorch/pytorch#18689", None),
    Bug(many.messages_in_another_order, "PaddlePaddle/Paddle#41652", None),
    Bug(many.message_that_is_not_received, "pytorch/pytorch#108378", None, remark="only one side was called: send to rank 1"),
    Bug(many.mean_of_means, "allenai/OLMo#453", None),
    Bug(one.offsets_of_32_bits, "databricks/megablocks#185", _ACCESS, "writes element -2147479552", "offsets", ranks=1),
    Bug(one.product_of_an_odd_length, "triton-lang/triton#630", _ACCESS, "reads element 640 of a", "product", ranks=1),
    Bug(one.masked_load_without_other, "sgl-project/sglang#27074", None, ranks=1),
    Bug(one.padding_used_as_an_index, "vllm-project/vllm-ascend#8531", _ACCESS, "reads element -1", "padded", ranks=1),
    Bug(one.counts_without_atomics, "triton-lang/triton#1088", _RACE, "_counted", "count", races=True, ranks=1),
    Bug(one.expert_whose_rows_nobody_writes, "tgale96/grouped_gemm#36", None, ranks=1),
    Bug(one.rows_cut_off_without_a_gradient, "pytorch/FBGEMM#5754", None, ranks=1),
    Bug(one.pinned_buffer_filled_again, "pytorch/tutorials#3261", _RACE, "fill_", races=True, ranks=1),
    Bug(one.indices_read_before_they_come, "sgl-project/sglang#16493", _RACE, "To order them: sync", races=True, ranks=1),
    Bug(one.prefetched_into_the_batch_in_use, "BVLC/caffe#2998", _RACE, "write after read", races=True, ranks=1),
    Bug(one.losses_with_their_graphs, "pytorch/pytorch#17568", _ROOM, "activations", ranks=1,
        options={"memory_limit": "60MB"}),
    Bug(one.state_loaded_beside_the_model, "yuantianyuan01/FastWAM#20", _ROOM, "optimizer state", ranks=1,
        options={"memory_limit": "177MB"}),
    Bug(one.state_of_all_ranks_on_the_first_gpu, "pytorch/examples#1078", _ROOM, "a GPU for each rank", ranks=8,
        options={"enable_data": False}),
    Bug(many.checkpoint_that_one_rank_finds, "KempnerInstitute/KempnerForge#49", _MISMATCH, "rank 1: barrier"),
    Bug(many.messages_before_all_have_met, "pytorch/pytorch#74701", _DEADLOCK, "rank 2: waits for store wait", ranks=3),
    Bug(many.symmetric_sums_of_two_streams, "pytorch/pytorch#189228", _RACE, "all_reduce (its signals)", races=True),
    Bug(many.sum_that_another_stream_waits_for, "pytorch/pytorch#188655", _RACE, "the stream that waits for", races=True),
    Bug(one.choice_that_loads_both, "vllm-project/vllm-ascend#16275", _ACCESS, "reads element -1 of", mark="before", ranks=1),
    Bug(one.mask_of_a_longer_tensor, "triton-lang/triton#10336", _ACCESS, "reads element 6 of", mark="strided", ranks=1),
    Bug(one.grid_along_the_wrong_axis, "triton-lang/triton#3299", RuntimeError, "Triton Error [CUDA]: invalid argument",
        mark="", ranks=1),
    Bug(one.tuned_on_what_it_changes, "triton-lang/triton#6547", None, remark="in x, which it reads and writes", ranks=1),
    Bug(one.branch_of_a_graph_that_is_not_joined, "deepseek-ai/DeepEP#62", torch.AcceleratorError,
        "capturing stream has unjoined work", mark="", ranks=1),
    Bug(one.weights_dropped_while_they_are_copied, "meta-pytorch/torchrec#4218", _RACE, "record_stream() on the tensor for",
        races=True, ranks=1),
    Bug(one.copy_that_is_asked_for_too_seldom, "sgl-project/sglang#16493", _RACE, "read after write", races=True, ranks=1),
    Bug(one.launched_on_the_current_gpu, "triton-lang/triton#2925", ValueError, "cannot be accessed from Triton (cpu tensor?)",
        mark="", ranks=1),
    Bug(calls.buffers_in_another_order, "verl-project/verl#6365", _MISMATCH, "(shape differ)"),
    Bug(calls.best_loss_that_one_rank_knows, "pytorch/pytorch#77562", _MISMATCH, "rank 1: barrier"),
    Bug(calls.step_of_ranks_without_overflow, "facebookresearch/fairscale#754", _MISMATCH, "rank 0: broadcast"),
    Bug(calls.message_shorter_than_its_room, "pytorch/pytorch#117486", _MISMATCH, "a message from rank 0 to rank 1"),
    Bug(calls.rows_of_another_width, "pytorch/pytorch#158016", _MISMATCH, "rank 1 sends 3 elements to rank 0, which expects 4"),
    Bug(calls.columns_scattered_as_they_are, "pytorch/pytorch#128066", ValueError, "Tensors must be contiguous", mark=""),
    Bug(calls.ring_of_single_messages, "NVIDIA/Fuser#5855", _DEADLOCK, "rank 0 -> rank 2 -> rank 0", ranks=4),
    Bug(calls.shards_of_each_ranks_own_length, "NVIDIA-NeMo/Automodel#1365", _MISMATCH, "(shape differ)"),
    Bug(calls.lengths_that_one_rank_has_changed, "NVIDIA/TensorRT-LLM#16745", _MISMATCH, "(shape differ)"),
    Bug(calls.norm_over_two_meshes, "pytorch/pytorch#180346", RuntimeError, "must have the same mesh", mark="", ranks=4),
    Bug(calls.result_left_out_of_a_static_graph, "pytorch/pytorch#97030", RuntimeError, "static_graph", mark=""),
    Bug(calls.gradients_that_no_hook_sees, "pytorch/pytorch#47562", None),
    Bug(calls.groups_ended_in_another_order, "pytorch/pytorch#190396", None, ranks=4),
    Bug(calls.buffer_left_on_the_host, "pytorch/pytorch#109103", RuntimeError, "No backend type associated with device",
        mark=""),
    Bug(calls.tokens_exchanged_in_place, "NVIDIA/nccl#1839", None, remark="writes its output over its input"),
    Bug(states.second_server_at_a_port, "pytorch/pytorch#41614", dist.DistNetworkError, "EADDRINUSE", mark=""),
    Bug(states.adapters_frozen_on_one_rank, "huggingface/accelerate#1481", RuntimeError, "DDP expects same model across all",
        mark=""),
    Bug(states.gradients_of_a_graph_that_are_summed, "pytorch/pytorch#181723", None, ranks=1),
    Bug(states.optimizer_of_parameters_before_sharding, "intelligent-machine-learning/dlrover#584", None),
    Bug(states.softmax_within_a_parallel_loss, "pytorch/pytorch#190746", None),
    Bug(streams.scaled_before_it_is_summed, "OpenNMT/OpenNMT-py#2295", _RACE, "call wait() on the work", races=True),
    Bug(streams.clones_gathered_by_another_stream, "pytorch/pytorch#197827", _RACE, "wait_stream", races=True, ranks=1),
    Bug(streams.sum_waited_for_on_another_stream, "pytorch/pytorch#145713", _RACE, "read after write", races=True),
    Bug(streams.batch_dropped_while_it_is_used, "huggingface/pytorch-image-models#2784", _RACE, "was given back", races=True,
        ranks=1),
    Bug(streams.captured_on_a_stream_that_is_not, "NVIDIA/nccl#1679", torch.AcceleratorError, "no replay does it again",
        mark="", ranks=1),
    Bug(streams.workspace_in_the_pool_of_a_graph, "ROCm/aiter#5393", None, ranks=1),
    Bug(streams.color_that_a_capture_keeps, "ROCm/aiter#3928", _RACE, "To order them", mark="pushed", races=True),
    Bug(streams.duration_asked_for_too_early, "pytorch/pytorch#85796", torch.AcceleratorError, "device not ready", mark="",
        ranks=1),
    Bug(streams.signal_of_another_group, "pytorch/pytorch#192581", None, remark="'s signal for one of rank", ranks=3),
    Bug(one.lock_that_is_overwritten_by_who_waits, "triton-lang/triton#1452", _DEADLOCK, "sees 3, wants == 2", "lock", ranks=1),
    Bug(one.count_stored_behind_its_lock, "vllm-project/vllm#55009", _RACE, "read after write", "counted", races=True, ranks=1),
    Bug(one.tile_read_back_in_another_order, "triton-lang/triton#1097", _RACE, "put tl.debug_barrier()", "turned", races=True,
        ranks=1),
    Bug(one.batches_that_hold_themselves, "pytorch/pytorch#50185", _ROOM, "20.00 MiB", mark="", ranks=1,
        options={"memory_limit": "100MB"}),
    Bug(streams.event_waited_for_before_it_is_recorded, "sgl-project/sglang#14214", _RACE, "write after read", races=True,
        ranks=1),
    Bug(streams.copied_by_a_stream_of_its_own, "ROCm/pytorch#3194", _RACE, "wait_stream", races=True, ranks=1),
    Bug(streams.halves_copied_to_the_host, "pytorch/pytorch#86264", _RACE, "To order them: sync", races=True, ranks=1),
    Bug(calls.results_gathered_on_the_host, "huggingface/accelerate#2180", ValueError, "Tensors must be CUDA", mark=""),
    Bug(calls.answers_that_end_at_their_own_token, "deepspeedai/DeepSpeed#8262", _MISMATCH, "rank 1: all_gather"),
    Bug(calls.tokens_that_each_ranks_cache_has, "LMCache/LMCache#1379", _MISMATCH, "(shape differ)"),
    Bug(calls.neighbours_that_are_one_rank, "NVIDIA/Megatron-LM#5271", None),
    Bug(states.accumulated_with_a_static_graph, "huggingface/accelerate#3679", RuntimeError, "expect_autograd_hooks", mark=""),
    Bug(states.layer_that_is_frozen_at_first, "pytorch/pytorch#186998", RuntimeError, "to assign a gradient", mark=""),
    Bug(states.gradients_of_local_tensors, "pytorch/torchtitan#1805", None),
    Bug(states.dropped_anew_when_it_is_computed_again, "allenai/OLMo-core#828", None, ranks=1),
)  # fmt: skip

FILLED = (one.expert_whose_rows_nobody_writes, one.rows_cut_off_without_a_gradient)
"""Programs that print NaN with ``fill_uninitialized="nan"``."""
