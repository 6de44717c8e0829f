"""The registry of model families. A family is one file or one folder here.

To add one: write the file, with a `FAMILY` at its end, and add its name to FAMILIES. Every
sequence-to-sequence family has a module with these methods (`Transformer` is the example). An
encoder by itself, such as bert, has `loss` and the methods that its tasks call.

    loss(batch, rngs, label_smoothing) -> Loss      training; rngs=None turns dropout off
    encode(src_BS) -> memory                        decoding: once per sentence,
    init_cache(memory, src_BS, num_hypotheses, max_length) -> cache
    decode_step(tokens_N, cache) -> logits_NV, cache        then token by token

The memory is any tree of arrays whose first axis is B. A cache is a dict: 'step', the number of
tokens decoded so far; 'sentence', arrays with one row for each source sentence; 'hypothesis',
arrays with one row for each of its M hypotheses (rows b * M to b * M + M - 1 belong to sentence
b). A search reorders 'hypothesis' and leaves the rest as it is. See cache.py.
"""

import dataclasses
import difflib
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from flax import nnx

from transformer.models.functional import FunctionalModel
from transformer.system.errors import UserError
from transformer.system.sharding import ShardingRules

KERNELS = ("cudnn_packed", "cudnn_attention", "triton_norm", "blocked_loss")  # see kernels.py
# Modules of transformer.models, imported on demand.
FAMILIES = (
    "transformer",
    "rnn",
    "convolutional",
    "universal",
    "bert",
    "decoder_only",
    "sagan",
)


@dataclasses.dataclass(frozen=True)
class ModelSection:
    """The base of all model sections. A family overrides what does not hold for it.

    These are no fields. A field of the same name needs a `setting()`, or it would have the value
    here as its default.
    """

    family: str

    width = None  # Equation 3 calls it d_model
    kernels = "plain"  # see kernels.py
    words_per_position = 1  # of a source

    def uses(self, kernel: str) -> bool:
        """True if a model with this section uses the fast form."""
        return kernel in self.kernels.split(",")

    def check_kernels(self) -> None:
        """Raises UserError for a value that model.kernels cannot have."""
        if self.kernels in ("auto", "plain"):
            return
        for name in self.kernels.split(","):
            if name not in KERNELS:
                raise UserError(
                    f"model.kernels is {self.kernels!r}; it must be auto, plain, or some of "
                    f"{','.join(KERNELS)}, with commas and without spaces"
                )


class Sizes(NamedTuple):
    """The sizes of a model that its data determine."""

    source_vocab: int
    target_vocab: int
    joint: bool  # one vocabulary for both sides
    max_source_length: int  # of training pairs, in tokens
    max_target_length: int
    row_segments: int = 0  # the most examples of a training row; 0: not known


class Family(NamedTuple):
    """All that the rest of the project needs to know about a family."""

    # The model section: a frozen dataclass that checks itself.
    config: type[ModelSection]
    # build(config, sizes, rngs) makes the module. It raises UserError if config and sizes do not
    # fit each other.
    build: Callable[[Any, Sizes, nnx.Rngs], nnx.Module]
    # The mesh axes that each parameter's dimensions are split over; see system/sharding.py.
    sharding: ShardingRules
    # flops(config, sizes, source_lengths, target_lengths): FLOPs to train on each pair once.
    flops: Callable[[Any, Sizes, np.ndarray, np.ndarray], np.ndarray]
    # Whether the model honours segment ids. If not, every row holds one pair.
    packs: bool
    # First names of the heads' parameters. A run does not take these from training.init_from if
    # its head is another one.
    heads: tuple[str, ...] = ()
    # Arrays with one entry per class of the task: a pattern of the whole path, and the axis. A run
    # whose classes differ from those of training.init_from matches entries by class name.
    class_axes: tuple[tuple[str, int], ...] = ()


def find_family(name: str) -> Family:
    """The family of this name; UserError if there is none."""
    if name not in FAMILIES:
        near = difflib.get_close_matches(name, FAMILIES, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UserError(
            f"model.family is {name!r:.60}; {hint}it must be one of: {', '.join(FAMILIES)}"
        )
    return importlib.import_module(f"transformer.models.{name}").FAMILY


def build_model(config: Any, sizes: Sizes) -> FunctionalModel:
    """The model of a config's model section, as pure functions."""
    family = find_family(config.family)
    return FunctionalModel(lambda rngs: family.build(config, sizes, rngs), family.sharding)
