"""The parts that the models in PyTorch have in common: a loss, updates, and our parameters."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

Loss = Callable[[], torch.Tensor]


def loss_of(model: nn.Module, config: Any, batch: Sequence[torch.Tensor]) -> Loss:
    """That of translations; batch: as a Batch, without its first axis."""
    src_BS, _, tgt_in_BT, tgt_out_BT, _ = (x.long() for x in batch)
    padding_BS = src_BS == 0

    def loss() -> torch.Tensor:
        logits_BTV = model(src_BS, tgt_in_BT, padding_BS)
        return nn.functional.cross_entropy(
            logits_BTV.float().flatten(0, 1),
            tgt_out_BT.flatten(),
            label_smoothing=config.training.label_smoothing,
        )

    return loss


def autocast(loss: Loss, device: str, enabled: bool) -> Loss:
    def cast() -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=enabled):
            return loss()

    return cast


def training(
    model: nn.Module, config: Any, loss: Loss, rates: Sequence[float]
) -> Callable[[], None]:
    """An update by Adam or AdamW, with clipping."""
    adam = optimizer(model, config.optimizer)
    schedule = scheduled(adam, rates)

    def step() -> None:
        loss().backward()
        if config.optimizer.max_grad_norm:
            nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.max_grad_norm)
        adam.step()
        schedule.step()
        adam.zero_grad()

    return step


def optimizer(model: nn.Module, config: Any, rate: float = 1.0) -> torch.optim.Optimizer:
    """Adam or AdamW by the config's optimizer section; rate: 1 to be scheduled."""
    return (torch.optim.AdamW if config.weight_decay else torch.optim.Adam)(
        model.parameters(),
        lr=rate,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        weight_decay=config.weight_decay,
        fused=True,
    )


def scheduled(adam: torch.optim.Optimizer, rates: Sequence[float]) -> Any:
    """The optimizer's schedule: a rate for each update, the last one for all that follow."""
    return torch.optim.lr_scheduler.LambdaLR(
        adam, lambda count: float(rates[min(count, len(rates) - 1)])
    )


def fill(tensor: torch.Tensor, values: Any) -> None:
    """Gives the tensor our parameters."""
    tensor.copy_(torch.tensor(np.asarray(values)))
