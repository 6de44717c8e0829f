"""The optimizers of Optax by name, such as optax.lion or optax.contrib.muon."""

import difflib
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax.contrib import MuonDimensionNumbers, ScheduleFreeState, schedule_free_eval_params

from transformer.models.functional import Params
from transformer.system.errors import UserError

# A parameter with one of these words in its name does not decay. Weight normalisation has lengths.
NO_WEIGHTS = {"bias", "scale", "shift", "length", "gamma"}


def is_weight(params: Any) -> Any:
    """Marks the parameters that decay: neither biases nor what normalisation scales or shifts by.

    It goes by names, not by dimensions: the biases or scales of experts or classes are 2-D arrays.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, _: NO_WEIGHTS.isdisjoint(name_of_leaf(path).split("_")), params
    )


def name_of_leaf(path: Any) -> str:
    return jax.tree_util.keystr(path[-1:], simple=True)


def _kernels(params: Any) -> Any:
    """Marks the matrices of layers for Muon; Adam updates embeddings and all else."""

    def leaf(path: Any, x: jax.Array) -> MuonDimensionNumbers | None:
        is_kernel = name_of_leaf(path) == "kernel" and x.ndim == 2
        return MuonDimensionNumbers() if is_kernel else None

    return jax.tree_util.tree_map_with_path(leaf, params)


# The arguments that we give, beside the learning rate, to the optimizers that take them.
OURS = {
    "mask": is_weight,
    "weight_decay_mask": is_weight,
    "muon_weight_dimension_numbers": _kernels,
}


def check(name: str, arguments: Mapping[str, Any]) -> None:
    """Raises UserError for a name, or an argument, that Optax does not have or cannot use."""
    known = _known()
    if name not in known:
        raise UserError(
            f"optimizer.name is {name!r:.60}, which Optax does not have; did you mean "
            f"{nearest(name)}?"
        )
    given = {"learning_rate", *OURS}
    takes = [key for key in inspect.signature(known[name]).parameters if key not in given]
    for key in arguments:
        if key not in takes:
            near = difflib.get_close_matches(key, takes, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}? " if near else ""
            hint = "the schedule and the names of parameters give it; " if key in given else hint
            raise UserError(
                f"optimizer.arguments has {key!r:.60}, which cannot be given to {name}; {hint}it "
                f"takes {', '.join(takes) or 'none'}"
            )
    try:
        is_json = json.loads(json.dumps(arguments, allow_nan=False)) == arguments
    except (TypeError, ValueError):
        is_json = False
    if not is_json:  # a run records them
        raise UserError(
            f"optimizer.arguments is {arguments!r:.100}; give numbers, text, True, False or [lists]"
        )
    params = {"kernel": jnp.zeros((2, 3)), "bias": jnp.zeros(3)}
    try:
        if is_schedule_free(name) and not arguments.get("b1", 0.9) > 0:
            raise ValueError("b1 must be above 0")  # Optax divides by it
        optimizer = build(name, arguments, lambda count: 0.1 / (count + 1))
        state = jax.eval_shape(optimizer.init, params)
        jax.eval_shape(optimizer.update, params, state, params)
        for leaf in jax.tree.leaves(state):
            if not jnp.issubdtype(leaf.dtype, jnp.number):
                raise TypeError(f"its state has {leaf.dtype}, which no checkpoint keeps")
    except Exception as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"optimizer.name is {name}, which cannot be used here with optimizer.arguments = "
            f"{dict(arguments)}: {reason:.200}; change the arguments, or choose another"
        ) from error


def build(
    name: str, arguments: Mapping[str, Any], rate: Callable[[jax.Array], jax.Array]
) -> optax.GradientTransformation:
    """The optimizer; name and arguments have passed `check`. rate: by updates done."""
    function = _known()[name]
    takes = inspect.signature(function).parameters
    ours = {key: value for key, value in OURS.items() if key in takes}
    optimizer = function(learning_rate=rate, **ours, **arguments)
    return _at_average(optimizer) if is_schedule_free(name) else optimizer


def nearest(name: str) -> str:
    """The optimizer of Optax with the most similar last word; optax.lion if none is similar."""
    by_word = {known.rpartition(".")[2]: known for known in reversed(_known())}
    return by_word[(difflib.get_close_matches(name.rpartition(".")[2], by_word, 1) or ["lion"])[0]]


def is_schedule_free(name: str) -> bool:
    return name.startswith("optax.contrib.schedule_free_")


def gradient_point(opt_state: Any, params: Params) -> Params:
    """The parameters at which an update takes its gradient.

    For schedule-free optimizers (Defazio et al. 2024) that is y = b1 * x + (1 - b1) * z. The
    parameters of the run are x, their average, so all that reads a run reads the right ones.
    """

    def is_free(state: Any) -> bool:
        return isinstance(state, ScheduleFreeState)

    for state in filter(is_free, jax.tree.leaves(opt_state, is_leaf=is_free)):
        z, b1 = dict(jax.tree.leaves_with_path(state.z)), state.b1  # no z of frozen parameters
        params = jax.tree.map_with_path(
            lambda path, x, z=z, b1=b1: b1 * x + (1 - b1) * z[path] if path in z else x, params
        )
    return params


def _at_average(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """A schedule-free optimizer whose parameters are x of `gradient_point`; Optax's are y."""

    def update(grads, state, params):
        y = gradient_point(state, params)
        updates, state = inner.update(grads, state, y)
        x = schedule_free_eval_params(state, optax.apply_updates(y, updates))
        return jax.tree.map(jnp.subtract, x, params), state

    return optax.GradientTransformation(inner.init, update)


def _known() -> dict[str, Callable]:
    """The functions of Optax that make an optimizer of a learning rate, by name."""
    modules = {"optax": optax, "optax.contrib": optax.contrib}
    return {
        f"{prefix}.{name}": function
        for prefix, module in modules.items()
        for name, function in vars(module).items()
        if inspect.isfunction(function) and not name.startswith(("_", "scale_by"))
        if "learning_rate" in inspect.signature(function).parameters
    }
