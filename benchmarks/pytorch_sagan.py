"""The same two networks in PyTorch, written in the usual way.

torch.nn.utils.parametrizations.spectral_norm takes an iteration at each forward pass in training
mode; its vectors are kept still where the networks are in evaluation mode.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import avg_pool2d, interpolate, max_pool2d, relu
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import spectral_norm

from benchmarks.pytorch_training import optimizer, scheduled
from transformer.models.sagan.sagan import DISCRIMINATOR, SAGANConfig
from transformer.models.sagan.self_attention import FORMS


def conv(size: int, inputs: int, outputs: int, bias: bool = True) -> nn.Module:
    return spectral_norm(nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=bias))


class Attention(nn.Module):
    def __init__(self, channels: int, form: str):
        super().__init__()
        narrow, wide, self.pooled = FORMS[form]
        self.key = conv(1, channels, channels // narrow, bias=False)
        self.query = conv(1, channels, channels // narrow, bias=False)
        self.value = conv(1, channels, channels // wide, bias=False)
        self.output = conv(1, channels // wide, channels, bias=False)
        self.gamma = nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        keys, values = self.key(x), self.value(x)
        if self.pooled:
            keys, values = max_pool2d(keys, 2), max_pool2d(values, 2)
        scores = self.query(x).flatten(2).transpose(1, 2) @ keys.flatten(2)
        outputs = values.flatten(2) @ scores.softmax(dim=-1).transpose(1, 2)
        return self.gamma * self.output(outputs.unflatten(2, x.shape[2:])) + x


class ConditionalNorm(nn.Module):
    def __init__(self, classes: int, channels: int):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels, affine=False, momentum=0.001)
        self.scale, self.shift = nn.Embedding(classes, channels), nn.Embedding(classes, channels)
        nn.init.ones_(self.scale.weight)
        nn.init.zeros_(self.shift.weight)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scale, shift = self.scale(labels), self.shift(labels)
        return self.norm(x) * scale[:, :, None, None] + shift[:, :, None, None]


class GeneratorBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, classes: int):
        super().__init__()
        self.norm1, self.norm2 = (ConditionalNorm(classes, n) for n in (inputs, outputs))
        self.conv1, self.conv2 = conv(3, inputs, outputs), conv(3, outputs, outputs)
        self.shortcut = conv(1, inputs, outputs)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        y = self.conv1(interpolate(relu(self.norm1(x, labels)), scale_factor=2))
        y = self.conv2(relu(self.norm2(y, labels)))
        return y + self.shortcut(interpolate(x, scale_factor=2))


class DiscriminatorBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, halves: bool, first: bool):
        super().__init__()
        self.halves, self.first = halves, first
        self.conv1, self.conv2 = conv(3, inputs, outputs), conv(3, outputs, outputs)
        self.shortcut = conv(1, inputs, outputs) if halves or inputs != outputs else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv2(relu(self.conv1(x if self.first else relu(x))))
        if self.halves:
            x, y = avg_pool2d(x, 2), avg_pool2d(y, 2)
        return y + (x if self.shortcut is None else self.shortcut(x))


class Generator(nn.Module):
    def __init__(self, config: SAGANConfig, classes: int):
        super().__init__()
        channels = self.channels = config.generator_channels
        self.first = spectral_norm(nn.Linear(config.noise_size, 16 * channels[0]))
        self.blocks = nn.ModuleList(
            GeneratorBlock(i, o, classes) for i, o in itertools.pairwise(channels)
        )
        self.attention_block = config.attention_block
        wide = channels[self.attention_block + 1]
        self.attention = nn.Identity()
        if config.attention != "none":
            self.attention = Attention(wide, config.attention)
        self.norm = nn.BatchNorm2d(channels[-1], momentum=0.001)
        self.last = conv(3, channels[-1], config.channels)

    def forward(self, noise: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.first(noise).unflatten(1, (self.channels[0], 4, 4))
        x = x.contiguous(memory_format=torch.channels_last)
        for i, block in enumerate(self.blocks):
            x = block(x, labels)
            if i == self.attention_block:
                x = self.attention(x)
        return torch.tanh(self.last(relu(self.norm(x))))


class Discriminator(nn.Module):
    def __init__(self, config: SAGANConfig, classes: int):
        super().__init__()
        widths = [config.channels, *config.discriminator_channels]
        halvings = [halves for _, halves in DISCRIMINATOR[config.image_size]]
        self.blocks = nn.ModuleList(
            DiscriminatorBlock(i, o, halves, n == 0)
            for n, ((i, o), halves) in enumerate(
                zip(itertools.pairwise(widths), halvings, strict=True)
            )
        )
        sizes = [config.image_size >> sum(halvings[: n + 1]) for n in range(len(halvings))]
        self.attention_block = sizes.index(config.attention_size)
        self.attention = nn.Identity()
        if config.attention != "none":
            self.attention = Attention(widths[self.attention_block + 1], config.attention)
        self.output = spectral_norm(nn.Linear(widths[-1], 1))
        self.classes = spectral_norm(nn.Embedding(classes, widths[-1]))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i == self.attention_block:
                x = self.attention(x)
        x = relu(x).sum(dim=(2, 3))
        return self.output(x)[:, 0] + (self.classes(labels) * x).sum(dim=1)


def training(config: Any, classes: int, rates: Sequence[float], batch: Sequence[torch.Tensor]):
    """The networks, and one update of both: the discriminator, the generator, its average.

    config: of the run. rates: the generator's. batch: as an ImageBatch, without its first axis.
    """
    networks = Generator(config.model, classes), Discriminator(config.model, classes)
    for network in networks:
        network.to(batch[0].device, memory_format=torch.channels_last)
    generator, discriminator = networks
    own = config.task.discriminator_learning_rate
    adams = [
        optimizer(generator, config.optimizer),
        optimizer(discriminator, config.optimizer, own),
    ]
    schedule = scheduled(adams[0], rates)
    # Those of the generator, which are kept still while it makes images for the discriminator.
    normalised = [
        module.parametrizations
        for module in generator.modules()
        if parametrize.is_parametrized(module, "weight")
    ]
    average = [p.detach().clone() for p in generator.parameters()]
    real = batch[0].permute(0, 3, 1, 2).float() / 127.5 - 1
    real, labels = real.contiguous(memory_format=torch.channels_last), batch[1].long()

    def drawn() -> tuple[torch.Tensor, torch.Tensor]:
        noise = torch.randn(len(labels), config.model.noise_size, device=labels.device)
        return noise, torch.randint_like(labels, classes)

    def step() -> None:
        # 1. The discriminator; its vectors take an iteration with the real images alone.
        noise, chosen = drawn()
        for part in normalised:
            part.eval()
        with torch.no_grad():
            fake = generator(noise, chosen)
        for part in normalised:
            part.train()
        real_loss = relu(1 - discriminator(real, labels)).mean()
        discriminator.eval()
        loss = real_loss + relu(1 + discriminator(fake, chosen)).mean()
        loss.backward()
        adams[1].step()
        # 2. The generator.
        noise, chosen = drawn()
        discriminator.requires_grad_(False)
        (-discriminator(generator(noise, chosen), chosen).mean()).backward()
        discriminator.requires_grad_(True)
        discriminator.train()
        adams[0].step()
        schedule.step()
        for adam in adams:
            adam.zero_grad()
        # 3. The average.
        with torch.no_grad():
            torch._foreach_lerp_(average, list(generator.parameters()), 0.001)

    return networks, step
