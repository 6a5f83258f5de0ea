"""Pictures of reports for the docs: `docs/images/report_*.png`, drawn by the Chromium of this machine.

    python docs/tools/report_images.py [NAME ...]

A training step on four GPUs, a step of 512, links between two nodes, a question of what-if, and runs that fail.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

IMAGES = Path(__file__).parents[1] / "images"


class Picture(NamedTuple):
    """A report, and what of it is seen: ``does`` runs in the page before; phones are narrower than a browser's window.

    ``behind``: what stands behind the program."""

    program: str
    options: tuple[str, ...]
    width: int
    height: int
    does: str = ""
    theme: str = "light"
    command: str = "run"
    behind: tuple[str, ...] = ()


_STEP = (
    Path(__file__).parents[1].joinpath("report.md").read_text().partition("file=train_step.py\n")[2].partition("```")[0]
)

_SETTINGS = (
    Path(__file__).parents[1].joinpath("what_if.md").read_text().partition("file=train.py\n")[2].partition("```")[0]
)

_MANY = """
import os
import torch, torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.set_default_device("cuda")
layers = [torch.nn.Linear(4096, 4096, dtype=torch.bfloat16) for _ in range(4)]
model = torch.nn.Sequential(*layers)
for _ in range(2):
    model(torch.randn(4096, 4096, dtype=torch.bfloat16)).sum().backward()
    for layer in reversed(layers):
        dist.all_reduce(layer.weight.grad)
    with torch.no_grad():
        for layer in layers:
            layer.weight.sub_(layer.weight.grad, alpha=1e-3)
"""

_DEADLOCK = """
import os
import torch, torch.distributed as dist
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
x = torch.ones(1024, 1024, device="cuda")
dist.all_reduce(x @ x)
dist.recv(x, (rank - 1) % world)
dist.send(x, (rank + 1) % world)
"""

_MISMATCH = """
import os
import torch, torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
loss, weights = torch.ones(1, device="cuda"), torch.ones(1024, 1024, device="cuda")
dist.broadcast(weights, src=0)
if dist.get_rank() == 0:
    dist.all_reduce(loss)
dist.all_reduce(weights)
"""

_RACE = """
import torch
x = torch.ones(1024, 1024, device="cuda")
weights = x @ x
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
gradient = weights @ x
with torch.cuda.stream(side):
    norm = weights.norm()
    scaled = gradient / norm
"""

_TOO_LARGE = """
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(16384, 16384) for _ in range(4)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for batch in (65536, 262144):
    model(torch.randn(batch, 16384, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

_CHOOSE = """
  const span = [...run.type.keys()].find((i) => run.call[i] && run.types[run.type[i]][0] === "all_reduce");
  timeline.look(run.length * 0.4, run.length * 0.72);
  timeline.go(span);
"""

_MOMENT = """
  const moment = document.getElementById("link-moment");
  moment.value = 100;
  moment.dispatchEvent(new Event("input"));
  for (const part of document.querySelectorAll("main > section:not(#links)")) part.hidden = true;
"""

_STEP_OPTIONS = ("--nproc-per-node", "4", "--system", "dgx_h100", "--no-data")
PICTURES = {
    "step": Picture(_STEP, _STEP_OPTIONS, 1280, 800, _CHOOSE),
    "phone": Picture(_STEP, _STEP_OPTIONS, 390, 844, _CHOOSE + "document.getElementById('timeline').scrollIntoView();"),
    "512_ranks": Picture(
        _MANY, ("--nproc-per-node", "8", "--nnodes", "64", "--system", "dgx_h100", "--no-data", "--ranks", "all",
                "--jitter", "0.04"), 1280, 1000, "timeline.show(document.getElementById('view').value = 'lines');",
    ),
    "links": Picture(
        _STEP, ("--nproc-per-node", "8", "--nnodes", "2", "--system", "dgx_h100", "--no-data", "--ranks", "all"), 1280, 1000,
        _MOMENT,
    ),
    "what_if": Picture(
        _SETTINGS, ("--set", "width=4096,8192", "--set", "batch=8,32", "--system", "dgx_h100", "--gpus", "8"),
        1280, 900,
        command="what-if",
        behind=("--", "--width", "{width}", "--batch", "{batch}"),
    ),
    "deadlock": Picture(_DEADLOCK, ("--nproc-per-node", "8", "--system", "dgx_h100"), 1280, 640),
    "mismatch": Picture(_MISMATCH, ("--nproc-per-node", "8", "--system", "dgx_h100"), 1280, 640),
    "race": Picture(_RACE, ("--system", "dgx_h100", "--races", "warn"), 1280, 720),
    "out_of_memory": Picture(_TOO_LARGE, ("--system", "dgx_h100", "--no-data"), 1280, 900),
}  # fmt: skip


def draw(name: str, picture: Picture) -> None:
    """Run the program, and draw its report."""
    with tempfile.TemporaryDirectory() as folder:
        program, page, shown = Path(folder, "train.py"), Path(folder, "report.html"), Path(folder, "shown.html")
        program.write_text(picture.program)
        command = [sys.executable, "-m", "kernbench", picture.command, *picture.options, "--report", page.name, program.name,
                   *picture.behind]  # fmt: skip
        subprocess.run(command, cwd=folder, capture_output=True, check=False)
        script = f"""<script>(async () => {{
          while (document.documentElement.dataset.open !== "yes") await new Promise((done) => setTimeout(done, 10));
          const {{ run, timeline }} = window.report ?? {{}};{picture.does}
        }})();</script>"""
        text = page.read_text(encoding="utf-8").replace("</body>", script + "</body>")
        text = text.replace('<html lang="en">', f'<html lang="en" data-chosen="{picture.theme}">')
        shown.write_text(text, encoding="utf-8")
        frame = Path(folder, "frame.html")
        frame.write_text(
            f'<body style="margin:0"><iframe src="shown.html" style="border:0;width:{picture.width}px;height:100vh"></iframe>'
        )
        subprocess.run(
            ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             f"--user-data-dir={folder}/profile", "--virtual-time-budget=20000",
             f"--window-size={picture.width},{picture.height}", f"--screenshot={IMAGES / f'report_{name}.png'}",
             (frame if picture.width < 500 else shown).as_uri()],
            capture_output=True, check=True,
        )  # fmt: skip


if __name__ == "__main__":
    for chosen in sys.argv[1:] or PICTURES:
        draw(chosen, PICTURES[chosen])
