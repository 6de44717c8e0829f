"""Heads of attention switched off, or made uniform, by other parameters of the same model.

A head that is off adds nothing: the rows of the output matrix that read it are zero. A uniform head
gives all that it may see the same weight: its query is zero, and so are all its scores. The model's
code stays as it is, so a search and a forward pass need no further argument.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from transformer.models.functional import Params, Path, at, put
from transformer.runs.restore import TrainedModel
from transformer.system.errors import UserError
from transformer.system.reading import Count

_ADD_TO_SCORES = ("t5", "alibi")  # positions with which a query of zero is not enough
WAYS = ("off", "uniform")


class Place(NamedTuple):
    """An attention of the model: its heads, and the arrays whose zeros do it, by one of WAYS.

    Each array has its path, and the axis on which the heads lie side by side. No arrays: this
    attention cannot be changed so.
    """

    heads: int
    off: list[tuple[Path, int]]
    uniform: list[tuple[Path, int]]


class Switch(NamedTuple):
    """A head to change, in a layer of one of the maps of `attention_maps.SIDES`; from 0."""

    map: str
    layer: Count
    head: Count
    way: str


def places_of(model: TrainedModel) -> dict[str, list[Place]]:
    """The attentions of each map, layer by layer; one for all steps or blocks that share it."""
    c, params = model.config.model, model.params
    if c.family == "rnn":
        return {"cross": [_of_rnn(c, params["decoder"])]} if c.attends else {}
    if c.family == "convolutional":
        # The target's embedding is part of each query, so none can be made zero.
        paths = [("attentions", i, "output", "length_O") for i in params["attentions"]]
        return {"cross": [Place(1, [(path, 0)], []) for path in paths]}
    found: dict[str, list[Place]] = {}
    for path in sorted(_attentions(params)):
        is_cross = path[-1] == "cross_attention"
        side = "encoder" if str(path[0]).startswith("encoder") else "decoder"
        uniform = [((*path, "query", "kernel"), 1), ((*path, "query", "bias"), 0)]
        uniform = [(x, axis) for x, axis in uniform if x[-1] in at(params, path)["query"]]
        if not is_cross and c.positions in _ADD_TO_SCORES:
            uniform = []
        place = Place(c.num_heads, [((*path, "output", "kernel"), 0)], uniform)
        found.setdefault("cross" if is_cross else side, []).append(place)
    return dict(
        sorted(found.items(), key=lambda item: ("encoder", "decoder", "cross").index(item[0]))
    )


def switched(
    model: TrainedModel, places: Mapping[str, Sequence[Place]], switches: Sequence[Switch]
) -> Params:
    """The model's parameters after some switches; the arrays that stay are the same."""
    params = jax.tree.map(lambda x: x, model.params)  # new dicts
    for name, layer, head, way in switches:
        if name not in places or layer >= len(places[name]) or head >= places[name][layer].heads:
            raise UserError(
                f"the model has no head {head + 1} in layer {layer + 1} of {name!r:.60}"
            )
        if way not in WAYS:
            raise UserError(f"a head cannot be {way!r:.60}; choose one of {', '.join(WAYS)}")
        place = places[name][layer]
        if not (arrays := getattr(place, way)):
            raise UserError(
                f"no change of parameters makes a head of {name} {way} in this model; "
                f"{'switch it off' if place.off and way != 'off' else 'leave it on'} instead"
            )
        for path, axis in arrays:
            old = at(params, path)
            new = np.array(old)
            size = new.shape[axis] // place.heads
            np.moveaxis(new, axis, 0)[head * size : (head + 1) * size] = 0
            put(params, path, jax.device_put(new, old.sharding))  # else programs compile again
    return params


def _attentions(params: Any, path: Path = ()) -> Iterator[Path]:
    """The paths of all multi-head attentions."""
    if isinstance(params, dict):
        if {"query", "key", "value", "output"} <= params.keys():
            yield path
        for name, part in params.items():
            yield from _attentions(part, (*path, name))


def _of_rnn(c: Any, decoder: Params) -> Place:
    """The one head of an RNN: all matrices that read the context, and the scores' own."""
    readers = [("context_UG",), ("readout", "context")]
    if c.attend == "between":  # the second cell reads nothing else
        readers.append(("cells", 1, "input_IG"))
    off = [("decoder", *x) for x in readers if _has(decoder, x)]
    scores = ("alignment", {"additive": "energy_K", "general": "key_UH"}.get(c.attention, ""))
    uniform = [("decoder", *scores)] if _has(decoder, scores) and not c.attention_window else []
    # The output matrix reads the context of "concat" along with the state.
    off = [] if c.readout == "concat" else off
    return Place(1, [(x, 0) for x in off], [(x, 0) for x in uniform])


def _has(params: Any, path: Path) -> bool:
    for name in path:
        if name not in params:
            return False
        params = params[name]
    return True
