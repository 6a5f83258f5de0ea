"""Networks of convolutions, and transformers of patches."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernbench.programs.gpu_steps.program import Step, TimedProgram, autocast, inference, training

BF16, FP16 = torch.bfloat16, torch.float16


class Bottleneck(nn.Module):
    """ResNet's: 1 x 1, 3 x 3, 1 x 1, beside a shortcut."""

    def __init__(self, given: int, width: int, stride: int) -> None:
        super().__init__()
        made = 4 * width
        conv = partial(nn.Conv2d, bias=False)
        self.conv_1, self.norm_1 = conv(given, width, 1), nn.BatchNorm2d(width)
        self.conv_2, self.norm_2 = conv(width, width, 3, stride, 1), nn.BatchNorm2d(width)
        self.conv_3, self.norm_3 = conv(width, made, 1), nn.BatchNorm2d(made)
        same = stride == 1 and given == made
        self.short = nn.Identity() if same else nn.Sequential(conv(given, made, 1, stride), nn.BatchNorm2d(made))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm_1(self.conv_1(x)), inplace=True)
        y = F.relu(self.norm_2(self.conv_2(y)), inplace=True)
        return F.relu(self.norm_3(self.conv_3(y)) + self.short(x), inplace=True)


def resnet50() -> nn.Module:
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    given = 64
    for number, (width, blocks) in enumerate([(64, 3), (128, 4), (256, 6), (512, 3)]):
        for block in range(blocks):
            layers.append(Bottleneck(given, width, 2 if number and not block else 1))
            given = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(given, 1000))


def resnet(batch: int, dtype: torch.dtype | None, channels_last: bool, evaluated: bool = False) -> Step:
    with torch.device("cuda"):
        model, x = resnet50(), torch.randn(batch, 3, 224, 224)
        targets = torch.randint(1000, (batch,))
    if channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = x.to(memory_format=torch.channels_last)
    if evaluated:
        model.eval()
        return inference(lambda: model(x), dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    return training(model, lambda: F.cross_entropy(model(x), targets), optimizer, dtype=dtype)


class Vit(nn.Module):
    """ViT's base, of patches of 16 x 16."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 768, 16, 16)
        self.first = nn.Parameter(torch.zeros(1, 1, 768))
        self.places = nn.Parameter(torch.zeros(1, 197, 768))
        layer = nn.TransformerEncoderLayer(768, 12, 3072, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
        self.head = nn.Linear(768, 1000)

    def forward(self, x: Tensor) -> Tensor:
        y = self.patches(x).flatten(2).transpose(1, 2)
        y = torch.cat((self.first.expand(len(x), -1, -1), y), dim=1) + self.places
        return self.head(self.layers(y)[:, 0])


def vit(batch: int) -> Step:
    with torch.device("cuda"):
        model, x, targets = Vit(), torch.randn(batch, 3, 224, 224), torch.randint(1000, (batch,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return training(model, lambda: F.cross_entropy(model(x), targets), optimizer, dtype=BF16)


class Denoising(nn.Module):
    """Of a denoising network: group norms, SiLU, 3 x 3, the time of the step added."""

    def __init__(self, given: int, made: int) -> None:
        super().__init__()
        self.norm_1, self.conv_1 = nn.GroupNorm(32, given), nn.Conv2d(given, made, 3, padding=1)
        self.time = nn.Linear(512, made)
        self.norm_2, self.conv_2 = nn.GroupNorm(32, made), nn.Conv2d(made, made, 3, padding=1)
        self.short = nn.Identity() if given == made else nn.Conv2d(given, made, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv_1(F.silu(self.norm_1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.conv_2(F.silu(self.norm_2(y))) + self.short(x)


class PlacesAttended(nn.Module):
    """Attention among the places of an image."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.GroupNorm(32, width),
            nn.Conv2d(width, 3 * width, 1),
            nn.Conv2d(width, width, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, width, high, wide = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, 3, width // 64, 64, high * wide).transpose(-1, -2).unbind(1)
        y = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(-1, -2).reshape(batch, width, high, wide))


class Unet(nn.Module):
    """A small denoising network of three sizes."""

    def __init__(self) -> None:
        super().__init__()
        widths = (128, 256, 384)
        self.first = nn.Conv2d(3, widths[0], 3, padding=1)
        self.down = nn.ModuleList([Denoising(128, 128), Denoising(128, 256), Denoising(256, 384)])
        self.middle, self.attended = Denoising(384, 384), PlacesAttended(384)
        self.up = nn.ModuleList([Denoising(768, 256), Denoising(512, 128), Denoising(256, 128)])
        self.norm, self.last = nn.GroupNorm(32, 128), nn.Conv2d(128, 3, 3, padding=1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y, kept = self.first(x), []
        for block in self.down:
            y = block(y, time)
            kept.append(y)
            y = F.avg_pool2d(y, 2)
        y = self.attended(self.middle(y, time))
        for block in self.up:
            y = F.interpolate(y, scale_factor=2.0, mode="nearest")
            y = block(torch.cat((y, kept.pop()), dim=1), time)
        return self.last(F.silu(self.norm(y)))


def unet(batch: int, side: int, evaluated: bool = False) -> Step:
    with torch.device("cuda"):
        model, x, time = Unet(), torch.randn(batch, 3, side, side), torch.randn(batch, 512)
    if evaluated:
        model.eval()
        return inference(lambda: model(x, time), FP16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return training(model, lambda: F.mse_loss(model(x, time).float(), x), optimizer, dtype=BF16)


def gan(batch: int) -> Step:
    """Two small networks, one against the other."""
    with torch.device("cuda"):
        maker = nn.Sequential(
            nn.ConvTranspose2d(100, 512, 4, 1, 0, bias=False), nn.BatchNorm2d(512), nn.ReLU(True),
            nn.ConvTranspose2d(512, 256, 4, 2, 1, bias=False), nn.BatchNorm2d(256), nn.ReLU(True),
            nn.ConvTranspose2d(256, 128, 4, 2, 1, bias=False), nn.BatchNorm2d(128), nn.ReLU(True),
            nn.ConvTranspose2d(128, 64, 4, 2, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(True),
            nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh(),
        )  # fmt: skip
        judge = nn.Sequential(
            nn.Conv2d(3, 64, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, True),
            nn.Conv2d(64, 128, 4, 2, 1, bias=False), nn.BatchNorm2d(128), nn.LeakyReLU(0.2, True),
            nn.Conv2d(128, 256, 4, 2, 1, bias=False), nn.BatchNorm2d(256), nn.LeakyReLU(0.2, True),
            nn.Conv2d(256, 512, 4, 2, 1, bias=False), nn.BatchNorm2d(512), nn.LeakyReLU(0.2, True),
            nn.Conv2d(512, 1, 4, 1, 0, bias=False), nn.Flatten(0),
        )  # fmt: skip
        real, yes, no = torch.randn(batch, 3, 64, 64), torch.ones(batch), torch.zeros(batch)
    of_maker = torch.optim.Adam(maker.parameters(), lr=2e-4, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))

    def step() -> None:
        made = maker(torch.randn(batch, 100, 1, 1, device="cuda"))
        of_judge.zero_grad()
        F.binary_cross_entropy_with_logits(judge(real), yes).backward()
        F.binary_cross_entropy_with_logits(judge(made.detach()), no).backward()
        of_judge.step()
        of_maker.zero_grad()
        F.binary_cross_entropy_with_logits(judge(made), yes).backward()
        of_maker.step()

    return step


def video(batch: int) -> Step:
    """Convolutions over time and space."""
    with torch.device("cuda"):
        widths, layers = (3, 64, 128, 256), []
        for given, made in pairwise(widths):
            layers += [nn.Conv3d(given, made, 3, padding=1), nn.BatchNorm3d(made), nn.ReLU(), nn.MaxPool3d(2)]
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(256, 400))
        x, targets = torch.randn(batch, 3, 16, 112, 112), torch.randint(400, (batch,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return training(model, lambda: F.cross_entropy(model(x), targets), optimizer, dtype=BF16)


def depthwise(batch: int) -> Step:
    """Blocks of ConvNeXt: 7 x 7 by channel, a layer norm, two products."""

    class Separated(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(self.conv(x).permute(0, 2, 3, 1))
            return x + self.down(F.gelu(self.up(y))).permute(0, 3, 1, 2)

    with torch.device("cuda"):
        model = nn.Sequential(nn.Conv2d(3, 192, 8, 8), *(Separated(192) for _ in range(6)))
        x = torch.randn(batch, 3, 224, 224)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss() -> Tensor:
        with autocast(BF16):
            return model(x).float().pow(2).mean()

    return training(model, loss, optimizer)


def programs() -> Iterator[TimedProgram]:
    yield TimedProgram("training", "resnet50 bf16 channels last, 128", partial(resnet, 128, BF16, True))
    yield TimedProgram("training", "resnet50 fp32, 64", partial(resnet, 64, None, False))
    yield TimedProgram("inference", "resnet50 fp32, 1", partial(resnet, 1, None, False, evaluated=True))
    yield TimedProgram(
        "inference", "resnet50 fp16 channels last, 128", partial(resnet, 128, FP16, True, evaluated=True)
    )
    yield TimedProgram("training", "vit base bf16, 64", partial(vit, 64))
    yield TimedProgram("training", "unet bf16, 32 of 64", partial(unet, 32, 64))
    yield TimedProgram("inference", "unet fp16, 2 of 64", partial(unet, 2, 64, evaluated=True))
    yield TimedProgram("training", "gan fp32, 128", partial(gan, 128))
    yield TimedProgram("training", "video bf16, 16", partial(video, 16))
    yield TimedProgram("training", "depthwise bf16, 64", partial(depthwise, 64))
