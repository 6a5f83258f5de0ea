"""Which packages have a stand-in: those that kernbench ships, and those of other distributions.

A stand-in is a folder of Python that is imported in a package's place, or operators in the place of the compiled modules of a
package that is installed. Other distributions bring theirs by an entry point of the group ``kernbench.stand_ins``:

    [project.entry-points."kernbench.stand_ins"]
    acme_ops = "acme_stand_in:stand_in"          # a StandIn
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path

from kernbench.errors import ConfigError

GROUP = "kernbench.stand_ins"


@dataclass(frozen=True)
class StandIn:
    """What stands in for one package.

    Attributes:
        name: of the package, as it is imported.
        release: whose functions it has, or with which its operators were tested.
        folder: of Python that is imported in the package's place; None: the package itself is installed.
        compiled: for each compiled module of the package (``"acme._C"``) a reference, ``"module:object"`` or
            ``"file.py:object"``, to the :class:`kernbench.compiled_operators.Operators` that it is said to define.
        loaded: the same for libraries that the package gives to ``torch.ops.load_library``, by a pattern of the end of their
            path (``"acme/_C*.so"``).
        bound: for each compiled module that gives functions, not operators (``pybind11``), a module of ours: its ``NAMES`` are
            those that a program imports, and its ``operators``, if there are any, are defined.
        absent: compiled modules without which the package does, too: their import says that they are not there.
        placed: for compiled modules that the package loads from files of its own choice, and imports where that fails, the
            file in the package's folder which says their schemas.
        needs: packages that the package's own Python imports and its wheel does not ask for.
        install: what installs the package's own Python without what is compiled for CUDA, where that is more than
            ``pip install --no-deps``.
        around: for a module of the package's Python that could not be executed without CUDA a reference to a context manager,
            which is given the module and within which it is executed.
        observed: for a module of the package a reference to a function, which is given the module when it has been imported:
            what tells the simulation of what the package does (:func:`kernbench.report_request`).
        per_rank: whether each rank of ``kernbench run`` executes the package's Python for itself, although it has compiled
            parts: it keeps in globals what belongs to a process.
        instead: whether ``folder`` is imported also where the package is installed: its Python compiles for CUDA when it is
            called.
        only_by_name: whether ``--stand-in auto`` does not bring ``folder``: engines look for the package, and take another
            way where it is not.
        distribution: the name of its release, where that is not the one that is imported.
        together: names of the stand-ins for what is installed with the package, and is found with it.
    """

    name: str
    release: str
    folder: Path | None = None
    compiled: Mapping[str, str] = field(default_factory=dict)
    loaded: Mapping[str, str] = field(default_factory=dict)
    bound: Mapping[str, str] = field(default_factory=dict)
    around: Mapping[str, str] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    placed: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    install: str = ""
    observed: Mapping[str, str] = field(default_factory=dict)
    per_rank: bool = False
    together: tuple[str, ...] = ()
    instead: bool = False
    only_by_name: bool = False
    distribution: str = ""

    @property
    def libraries(self) -> dict[str, str]:
        """References to all operators, by compiled module or pattern of a library."""
        return {**self.compiled, **self.loaded}

    @property
    def command(self) -> str:
        """What installs the package's own Python, without what is compiled for CUDA."""
        further = f" {' '.join(self.needs)}" if self.needs else ", and what it imports"
        return f"{self.install or f'pip install --no-deps {self.name}'}{further}"

    @property
    def compiles(self) -> bool:
        """Whether it stands in for anything compiled."""
        return bool(self.libraries or self.bound)


_SOURCE = "_SKIP_CUDA_BUILD=TRUE pip install --no-deps --no-build-isolation"
_APEX = "kernbench.compiled_operators.apex"
_SGLANG = "kernbench.compiled_operators.sglang"
_BNB = "kernbench.compiled_operators.bitsandbytes"
_TE = "kernbench.compiled_operators.transformer_engine"
_FLASH_3 = Path(__file__).with_name("flash_attn_3")
_VLLM = "kernbench.compiled_operators.vllm"
SHIPPED = {
    each.name: each
    for each in (
        StandIn("apex", "0.1", folder=Path(__file__).with_name("apex"), bound={
            "apex._kernels": f"{_APEX}.norms", "amp_C": f"{_APEX}.amp_c",
            "fused_layer_norm_cuda": f"{_APEX}.layer_norms", "fused_weight_gradient_mlp_cuda": f"{_APEX}.weight_gradients",
        }),
        StandIn(
            "bitsandbytes", "0.50.2", bound={"bitsandbytes._kernels": f"{_BNB}.extension"},
            around={"bitsandbytes.backends.cuda.ops": f"{_BNB}.loading:without_library"},
        ),
        StandIn(
            "causal_conv1d", "1.7.0", bound={"causal_conv1d_cuda": "kernbench.compiled_operators.causal_conv1d"},
            install=f"CAUSAL_CONV1D_FORCE_BUILD=TRUE CAUSAL_CONV1D{_SOURCE} causal_conv1d",
        ),
        StandIn("deep_ep", "1.2.1", folder=Path(__file__).with_name("deep_ep")),
        StandIn("deep_gemm", "2.6.1", folder=Path(__file__).with_name("deep_gemm"), bound={
            "deep_gemm._kernels": "kernbench.compiled_operators.deep_gemm",
        }),
        StandIn(
            "deepspeed", "0.19.8", bound={"deepspeed.ops.adam.fused_adam_op": "kernbench.compiled_operators.deepspeed"},
            observed={"deepspeed.git_version_info": "kernbench.compiled_operators.deepspeed:built"},
        ),
        StandIn("flash_attn", "2.8.3", folder=Path(__file__).with_name("flash_attn"), compiled={
            "flash_attn._kernels": "kernbench.compiled_operators.flash_attn:operators",
        }),
        StandIn("flash_attn_3", "3.0.0", folder=_FLASH_3, compiled={
            "flash_attn_3._C": "kernbench.compiled_operators.flash_attn:third",
        }, together=("flash_attn_interface",)),
        StandIn("flash_attn_interface", "3.0.0", folder=_FLASH_3 / "flash_attn_interface", together=("flash_attn_3",)),
        StandIn("flashinfer", "0.7.2.post1", folder=Path(__file__).with_name("flashinfer"), bound={
            "flashinfer._kernels": "kernbench.compiled_operators.flashinfer",
        }, instead=True, only_by_name=True, distribution="flashinfer_python"),
        StandIn(
            "mamba_ssm", "2.3.2.post1", bound={"selective_scan_cuda": "kernbench.compiled_operators.selective_scan"},
            install=f"MAMBA_FORCE_BUILD=TRUE MAMBA{_SOURCE} mamba_ssm", needs=("einops",),
        ),
        StandIn("sgl_kernel", "0.4.10", compiled={
            "common_ops": f"{_SGLANG}.library:common", "sgl_kernel.flash_ops": f"{_SGLANG}.library:flash",
            "sgl_kernel.flashmla_ops": f"{_SGLANG}.library:flash_mla", "sgl_kernel.spatial_ops": f"{_SGLANG}.library:spatial",
        }, placed={"common_ops": "sm90/common_ops.abi3.so"}),
        StandIn("sglang", "0.5.23", bound={"sglang._kernels": f"{_SGLANG}.kernels"}, observed={
            "sglang.kernels.jit.utils.compile.loader": f"{_SGLANG}.compiling:load_by_definition",
            "sglang.srt.distributed.device_communicators.custom_all_reduce_v2": f"{_SGLANG}.collectives:reduce_in_peers",
            "sglang.srt.distributed.device_communicators.pynccl": f"{_SGLANG}.collectives:communicate_in_graphs",
            "sglang.srt.distributed.device_communicators.triton_symm_mem_ag": f"{_SGLANG}.collectives:gather_in_switch",
            "sglang.srt.entrypoints.engine": f"{_SGLANG}.ending:ask_before_killing",
            "sglang.srt.layers.attention.flashattention_backend": f"{_SGLANG}.lengths:tell_lengths",
            "sglang.srt.managers.scheduler": f"{_SGLANG}.requests:observe",
            "sglang.srt.observability.req_time_stats": f"{_SGLANG}.requests:carry_times",
            "sglang.srt.mem_cache.unified_cache.tree_core_registry": f"{_SGLANG}.prefixes:prefer_python",
        }),
        StandIn("torchvision", "0.28.0", loaded={
            "torchvision/_C*.so": "kernbench.compiled_operators.torchvision:operators",
            "torchvision/image*.so": "kernbench.compiled_operators.torchvision:images",
        }),
        StandIn(
            "transformer_engine", "2.20.2", bound={"transformer_engine_torch": f"{_TE}.extension"},
            around={"transformer_engine.common": f"{_TE}.loading:without_libraries"},
            needs=("onnxscript", "onnx", "onnx_ir", "ml_dtypes"),
        ),
        StandIn("vllm", "0.33.0", compiled={
            "vllm._C_stable_libtorch": f"{_VLLM}.stable:operators",
            "vllm._moe_C_stable_libtorch": f"{_VLLM}.experts:operators",
            "vllm.vllm_flash_attn._vllm_fa2_C": f"{_VLLM}.attention:second",
            "vllm.vllm_flash_attn._vllm_fa3_C": f"{_VLLM}.attention:third",
        }, observed={
            "vllm.config.parallel": f"{_VLLM}.engines:refuse_side_by_side",
            "vllm.distributed.device_communicators.cuda_communicator": f"{_VLLM}.gathering:gather_by_torch",
            "vllm.model_executor.warmup.kernel_warmup": f"{_VLLM}.engines:finish_warm_up",
            "vllm.v1.core.sched.scheduler": f"{_VLLM}.requests:observe",
            "vllm.v1.structured_output": f"{_VLLM}.grammars:follow_grammars",
            "vllm.v1.worker.gpu.sample.sampler": f"{_VLLM}.sampling:observe_sampling",
            "vllm.v1.worker.gpu.spec_decode.rejection_sampler": f"{_VLLM}.sampling:observe_verifying",
        }, absent=("vllm.cumem_allocator",), per_rank=True),
        StandIn("xformers", "0.0.35", loaded={"xformers/_C*.so": "kernbench.compiled_operators.xformers:operators"}, around={
            f"xformers.ops.fmha.{name}": "kernbench.compiled_operators.xformers:by_torchs_kernels"
            for name in ("flash", "flash3")
        }),
    )
}  # fmt: skip
"""Those that kernbench ships, by name."""


def _brought() -> Sequence[EntryPoint]:
    """The entry points of other distributions."""
    from kernbench.plugins.discovery import installed  # commands that only print help do without

    return installed(GROUP)


def names() -> list[str]:
    """What there is, sorted."""
    return sorted({*SHIPPED, *(point.name for point in _brought())})


def source_of(name: str) -> str:
    """Who brings a stand-in, for people."""
    from kernbench.plugins.discovery import origin

    return next((origin(point) for point in _brought() if point.name == name), "kernbench")


def find(name: str) -> StandIn | None:
    """The stand-in for a package, or the one that a reference (``acme_stand_in.py:stand_in``) names; None if there is none.

    Raises ConfigError if what is brought is no :class:`StandIn`, PluginError if it cannot be imported.
    """
    if name in SHIPPED:
        return SHIPPED[name]
    reference = name if ":" in name else next((point.value for point in _brought() if point.name == name), "")
    if not reference:
        return None
    from kernbench.plugins.discovery import load_reference

    found = load_reference(reference)
    if not isinstance(found, StandIn):
        raise ConfigError(f"{reference} is a {type(found).__name__}: a stand-in is a kernbench.stand_ins.StandIn")
    return found


def all_of_them() -> Iterator[StandIn]:
    """Every stand-in that there is, by name."""
    for name in names():
        found = find(name)
        assert found is not None
        yield found
