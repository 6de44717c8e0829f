"""Parameters that training leaves unchanged: training.freeze.

No gradient is computed for them, so clipping and norms do not count them. The optimizer never sees
them, so they have no state and do not decay.
"""

import fnmatch
from typing import Any

import jax
import jax.numpy as jnp
import optax

from transformer.models.functional import Params, num_params
from transformer.system.errors import UserError
from transformer.system.sharding import name_of

SHOWN = 4  # names in a message


def is_frozen(freeze: str | None, name: str) -> bool:
    """True if a parameter, such as encoder_layers/0/feed_forward/hidden/kernel, is frozen.

    freeze: shell patterns between commas. A pattern may match the whole name, or its beginning up
    to a slash.
    """
    parts = name.split("/")
    beginnings = ["/".join(parts[:number]) for number in range(1, len(parts) + 1)]
    return any(fnmatch.filter(beginnings, pattern) for pattern in _patterns(freeze))


def check_freeze(freeze: str | None, params: Params) -> str:
    """Describes how much is frozen.

    params: arrays or shapes. Raises UserError for a pattern that matches no parameter, and if no
    parameter is left to train.
    """
    leaves = {name_of(path): leaf for path, leaf in jax.tree.leaves_with_path(params)}
    for pattern in _patterns(freeze):
        if not any(is_frozen(pattern, name) for name in leaves):
            shown = list(leaves)[:: -(-len(leaves) // SHOWN)]  # not all of one layer
            raise UserError(
                f"training.freeze has {pattern!r}, which matches none of the {len(leaves)} names; "
                f"they begin with {', '.join(params)}; some are {', '.join(shown)}"
            )
    frozen = [leaf for name, leaf in leaves.items() if is_frozen(freeze, name)]
    if len(frozen) == len(leaves):
        raise UserError(
            f"training.freeze is {freeze!r}, and that is every parameter; leave some to train"
        )
    return (
        f"{len(frozen)} of {len(leaves)} arrays, {num_params(frozen):,} of "
        f"{num_params(params):,} parameters"
    )


def stopped(freeze: str | None, params: Params) -> Params:
    """The same parameters; no gradient reaches the frozen ones."""
    if freeze is None:
        return params
    return jax.tree.map_with_path(
        lambda path, x: jax.lax.stop_gradient(x) if is_frozen(freeze, name_of(path)) else x, params
    )


def with_frozen(
    optimizer: optax.GradientTransformationExtraArgs, freeze: str | None
) -> optax.GradientTransformationExtraArgs:
    """Lets the optimizer of the other parameters take a tree of all parameters."""
    if freeze is None:
        return optimizer

    def trained(tree: Params, name: str = "") -> Params:
        """The tree without the frozen leaves."""
        return {
            key: trained(x, f"{name}{key}/") if isinstance(x, dict) else x
            for key, x in tree.items()
            if isinstance(x, dict) or not is_frozen(freeze, f"{name}{key}")
        }

    def whole(updates: Params, tree: Params) -> Params:
        # x + -0.0 is x, bit for bit; -0.0 + 0.0 would be 0.0.
        return {
            key: whole(updates[key], x)
            if isinstance(x, dict)
            else updates.get(key, jnp.full_like(x, -0.0))
            for key, x in tree.items()
        }

    def update(grads: Params, state: Any, params: Params, **how: Any) -> tuple[Params, Any]:
        updates, state = optimizer.update(trained(grads), state, trained(params), **how)
        return whole(updates, grads), state

    return optax.GradientTransformationExtraArgs(
        lambda params: optimizer.init(trained(params)), update
    )


def _patterns(freeze: str | None) -> list[str]:
    return [pattern.strip() for pattern in (freeze or "").split(",") if pattern.strip()]
