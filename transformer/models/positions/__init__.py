"""Positions: how a model knows the order of its tokens (Section 3.5, and what came later).

`model.positions` names a kind. Sinusoidal, fairseq's and learned encodings are added to embeddings,
by the families themselves. All others act inside of self-attention: they rotate queries and keys,
or add to scores, keys or values by distance. Each of these is a class in a file here; kind.py says
what it may do. To add one: write its file, and name the class in KINDS. Attention over the memory
has no positions.
"""

from typing import Any

from flax import nnx

from transformer.models.positions.alibi import ALiBi
from transformer.models.positions.kind import Positions
from transformer.models.positions.rotary import Rotary
from transformer.models.positions.segments import positions_from_the_end as positions_from_the_end
from transformer.models.positions.segments import segment_positions as segment_positions
from transformer.models.positions.segments import split_segments as split_segments
from transformer.models.positions.shaw import Shaw, ShawKeys
from transformer.models.positions.sinusoidal import fairseq_encoding, sinusoidal_encoding
from transformer.models.positions.t5 import T5

KINDS: dict[str, type[Positions]] = {
    "sinusoidal": Positions,
    "learned": Positions,
    "none": Positions,
    "rotary": Rotary,
    "relative": Shaw,
    "relative_keys": ShawKeys,
    "t5": T5,
    "alibi": ALiBi,
    "fairseq": Positions,
}
# Computed encodings: functions of positions and d_model.
ENCODINGS = {"sinusoidal": sinusoidal_encoding, "fairseq": fairseq_encoding}


def of_stack(config: Any, causal: bool, num_layers: int, rngs: nnx.Rngs) -> list[Positions]:
    """The positions of each layer of a stack: one object for all, if the kind is shared."""
    kind = KINDS[config.positions]
    made = [kind(config, causal, rngs) for _ in range(1 if kind.is_shared else num_layers)]
    return (made * num_layers)[:num_layers]
