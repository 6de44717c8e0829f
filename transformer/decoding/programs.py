"""Programs that all devices run, each on its own rows."""

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from transformer.data.prefetch import prefetch
from transformer.decoding.ensemble import Ensemble
from transformer.models.functional import FunctionalModel
from transformer.models.weight_layout import WeightLayout
from transformer.system.distributed import barrier
from transformer.system.sharding import distribute, replicated, split_over_all

# The parameters of a model, and its extra state ({} for most); for an ensemble, lists of these.
Variables = tuple[dict[str, Any], dict[str, Any]]


class Programs:
    """A function of variables and of trees of rows, compiled for each of their shapes.

    Each device computes its rows with all of the parameters: a step of a search is too little work
    to wait for messages. All processes then get all results.
    """

    def __init__(self, function: Callable[..., Any], num_trees: int, mesh: jax.sharding.Mesh):
        """function(variables, *trees, **static)."""
        self._function, self._mesh = function, mesh
        self._rows, self._everywhere = split_over_all(mesh), replicated(mesh)
        self._in_shardings = (self._everywhere, *[self._rows] * num_trees)
        self.gather = jax.jit(lambda variables: variables, out_shardings=self._everywhere)
        self.jitted = functools.cache(self._jitted)
        self._compiled: dict[Any, jax.stages.Compiled] = {}

    def __call__(self, variables: Variables, *trees: Any, **static: Any) -> Any:
        """The results, as NumPy arrays; `variables` as `gather` or `LaidOut` return them."""
        return self.compiled(variables, *trees, **static)(variables, *self._distribute(trees))

    def each(
        self, calls: Iterable[tuple[tuple, dict[str, Any]]], at_once: int = 1
    ) -> Iterator[Any]:
        """The results of calls, each (arguments, keywords), in order, as NumPy arrays.

        at_once: how many run at the same time. On a CPU each then needs its own thread: JAX runs
        the programs that one thread starts one after another.
        """

        def ready() -> Iterator[tuple[tuple, dict[str, Any]]]:
            for arguments, keywords in calls:
                self.compiled(*arguments, **keywords)  # else two threads would both compile it
                yield arguments, keywords

        def run(call: tuple[tuple, dict[str, Any]]) -> Any:
            arguments, keywords = call
            return jax.tree.map(np.asarray, self(*arguments, **keywords))

        if at_once == 1:
            yield from map(run, ready())
        else:
            yield from prefetch(run, ready(), ahead=at_once, threads=at_once)

    def compiled(self, variables: Variables, *trees: Any, **static: Any) -> jax.stages.Compiled:
        """The program for arrays of these shapes."""
        leaves, structure = jax.tree.flatten(trees)
        key = structure, tuple(x.shape for x in leaves), frozenset(static.items())
        if key not in self._compiled:
            lowered = self.jitted(**static).lower(variables, *self._distribute(trees))
            self._compiled[key] = lowered.compile()
            barrier()  # one may have compiled for longer
        return self._compiled[key]

    def _jitted(self, **static: Any) -> Callable[..., Any]:
        """The function with these keyword arguments, not yet compiled."""
        function = functools.partial(self._function, **static)
        specs = tuple(sharding.spec for sharding in self._in_shardings)
        # The compiler's own partition would make the devices wait for each other at each step.
        function = jax.shard_map(
            function, mesh=self._mesh, in_specs=specs, out_specs=specs[-1], check_vma=False
        )
        return jax.jit(function, in_shardings=self._in_shardings, out_shardings=self._everywhere)

    def _distribute(self, trees: Any) -> Any:
        return jax.tree.map(
            lambda x: distribute(lambda part: part, np.asarray(x), self._rows), trees
        )


class LaidOut:
    """Variables in a weight layout for CPUs, kept for the next search with the same arrays."""

    def __init__(self, model: FunctionalModel | Ensemble, mesh: jax.sharding.Mesh):
        def lay_out(variables: Variables, weight_layout: WeightLayout) -> Variables:
            return model.in_layout(*variables, weight_layout), variables[1]

        self._lay_out = lay_out
        if mesh.size > 1:
            # Not compiled for one device: that would copy the arrays that stay as they are.
            everywhere = replicated(mesh)
            self._lay_out = jax.jit(lay_out, static_argnums=1, out_shardings=everywhere)
        # Weak references to the arrays, and these in the layout, or None if that changes nothing.
        self._kept: dict[WeightLayout, tuple[list[weakref.ref], Variables | None]] = {}

    def __call__(self, variables: Variables, weight_layout: WeightLayout) -> Variables:
        leaves = jax.tree.leaves(variables)
        known, laid_out = self._kept.get(weight_layout, ([], None))
        if [id(ref()) for ref in known] != [*map(id, leaves)]:
            laid_out = self._lay_out(variables, weight_layout)
            if {*map(id, jax.tree.leaves(laid_out))} <= {*map(id, leaves)}:
                laid_out = None

            def forget(_: weakref.ref) -> None:
                if self._kept.get(weight_layout) is entry:
                    del self._kept[weight_layout]

            self._kept[weight_layout] = entry = [weakref.ref(x, forget) for x in leaves], laid_out
        return variables if laid_out is None else laid_out
