"""The config of an RNN encoder-decoder (models/rnn/rnn.py), and which settings go together."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from transformer.models.family import ModelSection
from transformer.models.layers import MOST_LAYERS, check_dtype
from transformer.models.rnn.recurrence import CELLS, INITIALIZATIONS
from transformer.system.errors import UserError, check_choice, check_range, setting

SCORES = ("additive", "dot", "general")  # of attention: alignment.py


class Readout(NamedTuple):
    """The last layer before the softmax: its inputs and its activation."""

    parts: tuple[str, ...]  # "previous" is the state before this token
    activation: Callable[[jax.Array], jax.Array] | None  # None: the parts themselves
    inputs: int = 1  # of the activation, for each output


READOUTS = {
    "state": Readout(("state",), None),
    "concat": Readout(("state", "context", "word"), None),
    "tanh": Readout(("state",), jnp.tanh),
    "deep": Readout(("state", "context", "word"), jnp.tanh),  # of dl4mt, Nematus and nmtpy
    "attentional": Readout(("state", "context"), jnp.tanh),  # Luong's h~
    # Bahdanau's t. It pairs columns 2j - 1 and 2j in the paper, j and R + j here: a better layout.
    "maxout": Readout(
        ("previous", "word", "context"), lambda x: jnp.maximum(*jnp.split(x, 2, axis=-1)), 2
    ),
}


@dataclasses.dataclass(frozen=True)
class RNNConfig(ModelSection):
    """The settings in which the papers differ; see configs/rnn_bahdanau.py."""

    embedding_size: int
    hidden_size: int
    num_layers: int
    cell: str
    gate_biases: int
    encoder: str
    initial_state: str
    attention: str
    attend: str
    attention_size: int
    attention_bias: bool
    attention_window: int
    input_feeding: bool
    readout: str
    readout_size: int
    readout_bias: bool
    output_bias: bool
    share_embeddings: str
    embedding_dropout: float = setting(architecture=False)
    layer_dropout: float = setting(architecture=False)
    memory_dropout: float = setting(architecture=False)
    output_dropout: float = setting(architecture=False)
    initialization: str = setting(architecture=False)
    dtype: str

    def __post_init__(self):
        sizes = "embedding_size hidden_size attention_size readout_size"
        dropouts = "embedding_dropout layer_dropout memory_dropout output_dropout"
        check_range(self, "model", sizes, 1)
        check_range(self, "model", "num_layers", 1, MOST_LAYERS + 1)
        check_range(self, "model", "attention_window", 0)
        check_range(self, "model", "gate_biases", 0, 3)
        check_range(self, "model", dropouts, 0, 1)
        for field, choices in (
            ("cell", CELLS),
            ("encoder", ("forward", "reversed", "bidirectional")),
            ("initial_state", ("copy", "backward", "both", "mean")),
            ("attention", ("none", "fixed", *SCORES)),
            ("attend", ("previous", "current", "between")),
            ("readout", READOUTS),
            ("share_embeddings", ("all", "decoder", "none")),
            ("initialization", INITIALIZATIONS),
        ):
            check_choice(self, "model", field, choices)
        check_dtype(self)
        for wrong, message in self._contradictions():
            if wrong:
                raise UserError(message)

    def _contradictions(self):
        c = self
        both_ways = c.encoder == "bidirectional"
        yield (
            both_ways == (c.initial_state == "copy"),
            f"model.initial_state is {c.initial_state!r} and model.encoder {c.encoder!r}; a "
            "bidirectional encoder needs backward, both or mean, the others copy",
        )
        yield (
            c.attention == "none" and (c.input_feeding or "context" in READOUTS[c.readout].parts),
            "model.attention is 'none', but model.input_feeding or model.readout = "
            f"{c.readout!r} needs a context; choose an attention, or readout state or tanh",
        )
        yield (
            c.attention == "dot" and self.annotation_size != c.hidden_size,
            "model.attention is 'dot', which needs annotations of the size of the state; set "
            "model.encoder to forward or reversed, or model.attention to general",
        )
        yield (
            c.input_feeding and (c.attend != "current" or c.readout != "attentional"),
            "model.input_feeding needs model.attend = 'current' and model.readout = 'attentional'",
        )
        yield (
            c.attend == "between" and (c.num_layers != 1 or not self.attends),
            "model.attend is 'between', which needs model.num_layers = 1 and an attention",
        )
        yield (
            c.attention == "fixed" and c.attend != "previous",
            "model.attention is 'fixed', which needs model.attend = 'previous'",
        )
        yield (
            not self.attends and c.initial_state == "backward",
            f"model.attention is {c.attention!r} and model.initial_state 'backward': nothing reads "
            "the encoder's other direction; set model.initial_state to both or mean",
        )
        yield (
            self.attends and c.attend == "current" and "context" not in READOUTS[c.readout].parts,
            f"model.attend is 'current', but model.readout = {c.readout!r} does not see the "
            "context; choose concat, deep, attentional or maxout",
        )
        for field, off in (("attention_window", 0), ("attention_bias", False)):
            yield (
                getattr(c, field) != off and not self.attends,
                f"model.{field} is {getattr(c, field)}, but there is no attention; set it to {off}",
            )
        yield (
            c.attention_bias and self.attends and c.attention != "additive",
            f"model.attention_bias is True, and model.attention {c.attention!r}, which has no "
            "biases; set it to False, or model.attention to additive",
        )
        yield (
            c.memory_dropout > 0 and not self.attends and c.initial_state != "mean",
            f"model.memory_dropout is {c.memory_dropout}, but nothing reads the annotations; set "
            "it to 0.0, or choose an attention",
        )
        yield (
            c.layer_dropout > 0 and c.num_layers == 1,
            f"model.layer_dropout is {c.layer_dropout}, but there is one layer, and it acts "
            "between layers; set it to 0.0, or model.num_layers to 2 or more",
        )
        yield (
            c.share_embeddings != "none" and self.output_size != c.embedding_size,
            f"model.share_embeddings is {c.share_embeddings!r}, which needs a readout of "
            f"model.embedding_size = {c.embedding_size}; it has {self.output_size}",
        )

    @property
    def attends(self) -> bool:
        return self.attention in SCORES

    @property
    def annotation_size(self) -> int:
        return self.hidden_size * (2 if self.encoder == "bidirectional" else 1)

    @property
    def output_size(self) -> int:
        """The size of the readout, the input of the softmax layer."""
        readout = READOUTS[self.readout]
        sizes = self.part_sizes
        return self.readout_size if readout.activation else sum(sizes[p] for p in readout.parts)

    @property
    def part_sizes(self) -> dict[str, int]:
        """The sizes of the possible inputs of a readout."""
        H = self.hidden_size
        sizes = {"state": H, "previous": H, "word": self.embedding_size}
        return sizes | {"context": self.annotation_size}

    @property
    def summary_size(self) -> int:
        H, parts = self.hidden_size, CELLS[self.cell].parts
        return {"copy": self.num_layers * parts * H, "backward": H}.get(self.initial_state, 2 * H)
