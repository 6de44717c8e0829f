"""One update of a generator and a discriminator: this project against PyTorch, in turns.

    pip install -r requirements-benchmarks.txt
    python benchmarks/versus_pytorch_sagan.py --config=configs/sagan_cifar10.py --images=64

Both train the same two networks (benchmarks/pytorch_sagan.py has PyTorch's) on the same random
images, on the CPU: a step of the discriminator, one of the generator, and the moving average. Each
is a process of its own, and only one works at a time.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from absl import flags
from ml_collections import config_flags

from benchmarks import timing
from transformer.runs import cli
from transformer.runs.run_config import Config
from transformer.system.cpu import available_cores
from transformer.system.errors import UserError
from transformer.system.paths import DEFINE_path
from transformer.system.startup import use_huge_pages

CLASSES = 10
OURS, PYTORCH = "ours", "pytorch"

CONFIG = config_flags.DEFINE_config_file("config", None, "A config of the task images.")
IMAGES = flags.DEFINE_integer("images", 64, "Real images in an update.", lower_bound=2)
ROUNDS = flags.DEFINE_integer("rounds", 5, "Measurements of each.", lower_bound=1)
OUTPUT = DEFINE_path("output", None, "A JSON file for the result.")
WORKER = flags.DEFINE_enum("worker", None, [OURS, PYTORCH], "Used by this script itself.")


def main() -> None:
    config = Config.from_dict(cli.config_of(CONFIG))
    if config.task.name != "images" or config.task.discriminator_steps != 1:
        raise UserError("give a config of the task images with task.discriminator_steps=1")
    if WORKER.value == OURS:
        use_huge_pages()  # as train.py; starts the worker anew
        timing.serve(lambda: prepare_ours(config))
    elif WORKER.value:
        timing.serve(lambda: prepare_pytorch(config))
    else:
        heading = f"{IMAGES.value} images an update"
        timing.compare_two(OURS, PYTORCH, ROUNDS.value, heading, OUTPUT.value)


def random_images(size: int, channels: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (IMAGES.value, size, size, channels), np.uint8)
    return images, rng.integers(0, CLASSES, IMAGES.value, np.int32)


def prepare_ours(config: Config) -> tuple[dict[str, Any], Callable[[], float]]:
    import jax

    from transformer.models.family import build_model
    from transformer.models.functional import num_params
    from transformer.system.sharding import data_mesh, split_rows, state_sharding
    from transformer.tasks.images import sizes_of, two_optimizers
    from transformer.training.adversarial import ImageBatch, make_adversarial_step
    from transformer.training.schedules import make_schedule
    from transformer.training.step import abstract_state, init_state

    start, mesh = time.monotonic(), data_mesh(jax.devices()[:1])
    model = build_model(config.model, sizes_of(list("0123456789")))
    optimizer = two_optimizers(config, make_schedule(config.optimizer, None))
    sizes = config.model.noise_size, CLASSES
    update = make_adversarial_step(
        model, optimizer, config.training, config.task, sizes, False, mesh
    )
    images, labels = random_images(config.model.image_size, config.model.channels)
    batch = jax.device_put(ImageBatch(images[None], labels[None]), split_rows(mesh, axis=1))
    shardings = state_sharding(mesh, abstract_state(model, optimizer), model.sharding)
    state = jax.jit(lambda: init_state(model, optimizer, 0), out_shardings=shardings)()
    update = update.lower(state, batch).compile()
    at = {"state": state}

    def step() -> None:
        at["state"], _ = update(at["state"], batch)

    def finish() -> None:
        jax.block_until_ready(at["state"])

    step()
    finish()
    about = {"parameters": num_params(state.params), "start_seconds": time.monotonic() - start}
    return about, timing.repeat_for_a_second(step, finish)


def prepare_pytorch(config: Config) -> tuple[dict[str, Any], Callable[[], float]]:
    import torch

    from benchmarks.pytorch_sagan import step_of

    start = time.monotonic()
    torch.set_num_threads(available_cores())
    images, labels = random_images(config.model.image_size, config.model.channels)
    real = torch.tensor(images).permute(0, 3, 1, 2).float() / 127.5 - 1
    batch = real.contiguous(memory_format=torch.channels_last), torch.tensor(labels).long()
    rates = config.optimizer.peak_learning_rate, config.task.discriminator_learning_rate
    *networks, step = step_of(config.model, CLASSES, rates, batch)
    step()
    number = sum(p.numel() for network in networks for p in network.parameters())
    about = {"parameters": number, "start_seconds": time.monotonic() - start}
    return about | {"torch": torch.__version__}, timing.repeat_for_a_second(step, lambda: None)


if __name__ == "__main__":
    default = Path(__file__).parents[1] / "configs" / "sagan_cifar10.py"
    cli.run(main, default_config=default)
