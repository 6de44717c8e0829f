"""Models as pure functions, so that their users need not know NNX."""

import functools
import itertools
import operator
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx

from transformer.models.weight_layout import WeightLayout
from transformer.system.sharding import ShardingRules

Params = dict[str, Any]
Path = tuple[str | int, ...]  # of a part of parameters


class FunctionalModel:
    """A model as pure functions of its parameters and its extra state.

    Both are nested dicts of arrays. Extra state is the arrays of a module that no gradient
    updates, such as the vectors of spectral normalisation; most models have none ({}).
    """

    def __init__(self, build: Callable[[nnx.Rngs], nnx.Module], sharding: ShardingRules = ()):
        """`build(rngs)` makes the module; `sharding` has the rows of its family's table.

        Raises ValueError for a module that keeps random state. Random keys must be arguments:
        otherwise a resumed run, or one on other devices, would draw other numbers.
        """

        def build_here(key: jax.Array) -> nnx.Module:
            rngs, numbers = nnx.Rngs(key), itertools.count()
            # NNX counts with an array: to trace that takes half of the time of a build.
            rngs.params = lambda: jax.random.fold_in(rngs.default.key[...], next(numbers))
            # Otherwise NNX 0.12 requires a mesh as soon as a parameter with a sharding is made.
            with nnx.use_eager_sharding(False):
                return build(rngs)

        self.sharding = sharding
        self._build = build_here
        self._parts = functools.cache(self._abstract_parts)
        _, self._params, self._extra = self._parts(None)

    def init(self, key: jax.Array) -> Params:
        """Fresh parameters. `key` is a typed key or an int seed."""
        return nnx.to_pure_dict(_split(self._build(key))[1])

    def init_extra(self, key: jax.Array) -> dict[str, Any]:
        """The extra state that belongs to `init(key)`."""
        return nnx.to_pure_dict(_split(self._build(key))[2])

    def abstract_params(self) -> Params:
        """Shapes and types of the parameters; allocates nothing."""
        return nnx.to_pure_dict(self._params)

    def abstract_extra(self) -> dict[str, Any]:
        """Shapes and types of the extra state; allocates nothing."""
        return nnx.to_pure_dict(self._extra)

    def bind(
        self,
        params: Params,
        extra: dict[str, Any] | None = None,
        *,
        weight_layout: WeightLayout | None = None,
    ) -> nnx.Module:
        """The module with these arrays; free under `jax.jit`.

        extra: may be omitted if the model has no extra state; otherwise that is a TypeError.
        weight_layout: the layout of `params`, if they come from `in_layout`.
        """
        if extra is None and self._extra:
            raise TypeError("this model has extra state: call bind(params, extra)")
        graphdef, *states = self._parts(weight_layout)
        states = jax.tree.map(lambda x: x, states)
        for state, arrays in zip(states, (params, extra or {}), strict=True):
            nnx.replace_by_pure_dict(state, arrays)
        return nnx.merge(graphdef, *states)

    def in_layout(
        self, params: Params, extra: dict[str, Any] | None, weight_layout: WeightLayout
    ) -> Params:
        """The parameters in this layout; those that it does not change are the same arrays."""
        module = self.bind(params, extra)
        _lay_out(module, weight_layout)
        return nnx.to_pure_dict(_split(module)[1])

    def takes_int8(self) -> bool:
        """True if `WeightLayout.INT8` changes any matrix."""
        _, params, _ = self._parts(WeightLayout.INT8)
        return any(leaf.dtype == np.int8 for leaf in jax.tree.leaves(params))

    def extra_of(self, module: nnx.Module) -> dict[str, Any]:
        """The extra state of a bound module, as its calls have left it."""
        return nnx.to_pure_dict(_split(module)[2])

    def _abstract_parts(self, weight_layout: WeightLayout | None) -> tuple[nnx.GraphDef, Any, Any]:
        def build() -> nnx.Module:
            module = self._build(0)
            if weight_layout is not None:
                _lay_out(module, weight_layout)
            return module

        return _split(nnx.eval_shape(build))


def _lay_out(module: nnx.Module, weight_layout: WeightLayout) -> None:
    for _, part in nnx.iter_modules(module):
        if hasattr(part, "lay_out"):
            part.lay_out(weight_layout)


def _split(module: nnx.Module) -> tuple[nnx.GraphDef, nnx.State, nnx.State]:
    """The structure, the parameters and the extra state of a module."""
    return nnx.split(module, nnx.Param, nnx.Not(nnx.RngState))


def at(params: Params, path: Path) -> Any:
    """The part of parameters at a path."""
    return functools.reduce(operator.getitem, path, params)


def put(params: Params, path: Path, value: Any) -> None:
    """Sets the part at a path; makes the dicts on the way."""
    for key in path[:-1]:
        params = params.setdefault(key, {})
    params[path[-1]] = value


def num_params(params: Params) -> int:
    """The total size of a tree of parameters or of their shapes."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))
