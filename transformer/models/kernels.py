"""The fast forms of parts of a model, by name."""

from typing import Any

from transformer.system.errors import UserError

KERNELS = {"cuda": ("cudnn_attention", "triton_norm", "blocked_loss"), "tpu": ("blocked_loss",)}


def uses(config: Any, name: str) -> bool:
    return name in config.kernels.split(",")


def check_names(kernels: str) -> None:
    pass
