"""vLLM's own engine under a stream of requests, each rank the whole engine (its ``external_launcher``), without a server.

    kernbench serve --engine vllm --model DIR --requests poisson:4/s,in=1024,out=256

Further options are vLLM's own (``--max-num-seqs 128 --enforce-eager``). Requests reach the engine between two of its steps, as
from a server in its process; tokens are numbers, and are not detokenised.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import deque
from pathlib import Path
from typing import Any

WITHOUT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process, which is the rank
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # a package of builds for CUDA
}


def main() -> None:
    """Serve."""
    os.environ.update({name: os.environ.get(name, value) for name, value in WITHOUT.items()})
    import torch.distributed as dist
    from vllm import EngineArgs, LLMEngine, SamplingParams

    from kernbench.programs.requests import FORMS, limited, requests_of

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", default="none", help=FORMS)
    parser = EngineArgs.add_cli_args(parser)
    parser.set_defaults(load_format="dummy", skip_tokenizer_init=True)
    args = parser.parse_args()
    world = int(os.environ.get("WORLD_SIZE", "1"))
    path = Path(args.model)
    args.model = str(path.parent if path.is_file() else path)
    if world > 1:
        args.tensor_parallel_size, args.distributed_executor_backend = world, "external_launcher"
    engine = LLMEngine.from_engine_args(EngineArgs.from_cli_args(args))
    config = engine.vllm_config
    longest, cache = config.model_config.max_model_len, config.cache_config
    if int(os.environ.get("RANK", "0")) == 0:
        tokens = (cache.num_gpu_blocks or 0) * cache.block_size
        print(f"cache {cache.num_gpu_blocks:,} blocks of {cache.block_size}: {tokens:,} tokens, {tokens / longest:.1f} "
              f"sequences of {longest:,}")  # fmt: skip
    vocabulary = json.loads((Path(args.model) / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    coming = deque(limited(requests_of(args.requests, vocabulary), longest))
    begin = time.perf_counter()
    dated = time.time() - begin
    while coming or engine.has_unfinished_requests():
        now = time.perf_counter() - begin
        if world > 1 and coming:  # all ranks must take the same requests before the same step
            said = [now]
            dist.broadcast_object_list(said, 0, group=_of_hosts())
            now = said[0]
        while coming and coming[0].arrival <= now:
            request = coming.popleft()
            wanted = SamplingParams(temperature=0.0, max_tokens=request.wanted, ignore_eos=True, detokenize=False)
            prompt = {"prompt_token_ids": [*request.prompt]}
            engine.add_request(request.name, prompt, wanted, arrival_time=begin + dated + request.arrival)
        if engine.has_unfinished_requests():
            engine.step()
        else:
            time.sleep(max(coming[0].arrival - now, 0.0))


def _of_hosts() -> Any:
    from vllm.distributed.parallel_state import get_world_group

    return get_world_group().cpu_group


if __name__ == "__main__":
    main()
