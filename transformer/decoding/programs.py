"""Programs that all devices run, each on rows of its own."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from transformer.system.distributed import barrier
from transformer.system.sharding import distribute, replicated, split_over_all

# The parameters of a model, and its extra state ({} for most); of an ensemble, lists of theirs.
Variables = tuple[dict[str, Any], dict[str, Any]]


class Programs:
    """A function of variables and of arrays of rows, compiled for each of their shapes.

    Each device computes its rows with all of the parameters: a step of a search is too little work
    to wait for messages. All processes then get all results.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        mesh: jax.sharding.Mesh,
        static_argnames: str | tuple[str, ...] = (),
    ):
        self._rows, everywhere = split_over_all(mesh), replicated(mesh)
        self.gather = jax.jit(lambda variables: variables, out_shardings=everywhere)
        self._function = jax.jit(
            function, out_shardings=everywhere, static_argnames=static_argnames
        )
        self._compiled: dict[Any, jax.stages.Compiled] = {}

    def __call__(self, variables: Variables, *arrays: Any, **static: Any) -> Any:
        """The results; `variables` as `gather` gives them, NumPy arrays of the same rows."""
        return self.compiled(variables, *arrays, **static)(variables, *self._distribute(arrays))

    def compiled(self, variables: Variables, *arrays: Any, **static: Any) -> jax.stages.Compiled:
        """The program for arrays of these shapes."""
        leaves, tree = jax.tree.flatten(arrays)
        key = tree, tuple(x.shape for x in leaves), tuple(sorted(static.items()))
        if key not in self._compiled:
            lowered = self._function.lower(variables, *self._distribute(arrays), **static)
            self._compiled[key] = lowered.compile()
            barrier()  # one may have compiled for longer
        return self._compiled[key]

    def _distribute(self, arrays: Any) -> Any:
        return jax.tree.map(
            lambda x: distribute(lambda part: part, np.asarray(x), self._rows), arrays
        )
