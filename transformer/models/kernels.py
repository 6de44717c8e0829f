"""Fast kernels for parts of a model on accelerators, and checks of whether to trust them.

    cudnn_packed     attention inside of segments, in training           packed_attention.py
    cudnn_attention  scaled dot-product attention by NVIDIA's kernel     attention.py
    triton_norm      add & norm in one kernel each way                   fused_norm.py
    blocked_loss     output layer and loss without whole float32 logits  loss.py

`model.kernels` is auto, plain, or names from this list with commas between them. A model uses the
kernels that the config names, and none for auto. A run calls `proven` first: it replaces auto by
the list for its devices, and keeps of any list the kernels that agree there with the plain form.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from transformer.models import fused_norm
from transformer.models.attention import KeyValues, Mask, attention, fast_attention
from transformer.models.family import KERNELS
from transformer.models.loss import OutputLayer, output_loss
from transformer.models.numerics import DropoutRngs, dropout, row_keys, standardize
from transformer.models.packed_attention import spans_of
from transformer.models.positions import KINDS
from transformer.system.distributed import from_first

# By platform of the devices; others, such as CPUs, have none.
BY_PLATFORM = {"gpu": KERNELS, "cuda": KERNELS, "tpu": ("blocked_loss",)}
HOPPER = 9.0  # the compute capability of the first GPUs with cuDNN's packed form
# The largest distance of results from those in float32, relative to their norm: several times
# the effect of bfloat16's rounding.
TOLERANCE = 0.02


def cannot(name: str, config: Any) -> str:
    """The reason why no part of a model with this section can use the kernel; "" if some can."""
    if name in ("cudnn_packed", "cudnn_attention"):
        if config.dtype != "bfloat16":
            return "it is for model.dtype=bfloat16"
        size = config.key_size
        if size != config.value_size or size % 8 or size > 128:
            return "keys and values must have one size, 8, 16, ... or 128"
        if config.logit_soft_cap:
            return "it has no model.logit_soft_cap"
        if KINDS[config.positions].scores and not all(config.depths):
            return f"it has no model.positions={config.positions}"
        if name == "cudnn_packed":
            if config.family not in ("transformer", "universal"):
                return "it is for model.family=transformer and universal"
            if config.attention_dropout:
                return "it has no model.attention_dropout"
            if config.key_value_heads != config.num_heads:
                return "it is for as many heads of keys as of queries"
    elif name == "triton_norm":
        if config.norm != "post" or config.normalization != "layer_norm":
            return "it is for post-LN, with layer_norm"
        if not fused_norm.fits(config.d_model):
            return f"model.d_model = {config.d_model} is no power of 2 from 16 to 8192"
    return ""


def chosen(config: Any, device: jax.Device) -> Any:
    """The model section with auto replaced by the kernels of a kind of devices, untested."""
    if config.kernels != "auto":
        return config
    names = [name for name in BY_PLATFORM.get(device.platform, ()) if not cannot(name, config)]
    if "cudnn_packed" in names and float(device.compute_capability) < HOPPER:
        names.remove("cudnn_packed")
    return dataclasses.replace(config, kernels=",".join(names) or "plain")


def proven(config: Any, mesh: jax.sharding.Mesh) -> Any:
    """The model section with those of its kernels that agree with the plain form on this device.

    Prints their names, and a warning for each of the others. The trials take some seconds.
    """
    config = chosen(config, mesh.devices.flat[0])
    if config.kernels == "plain":
        return config
    kept = []
    for name in config.kernels.split(","):
        # A kernel that cannot run would be tried in its plain form, and agree.
        why = cannot(name, config) or from_first(lambda name=name: disagreement(name, config))
        if why:
            print(f"warning  {name} is not used: {why}; the plain form takes its place", flush=True)
        else:
            kept.append(name)
    print(f"kernels  {', '.join(kept) or 'plain'}; tried on this device", flush=True)
    return dataclasses.replace(config, kernels=",".join(kept) or "plain")


def disagreement(name: str, config: Any, interpret: bool = False) -> str:
    """The reason not to trust a kernel on this device; "" if it agrees with plain float32.

    The case is random and small, has packed rows and padding, and is causal. interpret: runs
    Pallas kernels without their device, for tests.
    """
    case = functools.partial(CASES[name], config, interpret)
    dtype = jnp.dtype(config.dtype)
    try:
        found = jax.device_get(jax.jit(functools.partial(case, True, dtype))())
        expected = jax.device_get(jax.jit(functools.partial(case, False, jnp.float32))())
    except Exception as error:  # compilers and libraries raise errors of any type
        first_line = str(error).partition("\n")[0]
        return f"it fails ({type(error).__name__}: {first_line[:150]})"
    for i, (ours, plain) in enumerate(zip(found, expected, strict=True)):
        ours, plain = ours.astype("float64"), plain.astype("float64")
        distance = float((((ours - plain) ** 2).sum() / (plain**2).sum()) ** 0.5)
        if not distance <= TOLERANCE:  # NaN, too
            return f"its result {i} is {distance:.2g} from the plain form's, relative to its norm"
    return ""


B, T = 2, 96  # `fast_attention` gives cuDNN no rows of 64


def _segments() -> jax.Array:
    """Two rows of three sentences, the first with padding."""
    lengths_B4 = jnp.array([[20, 1, 64, 11], [9, 30, 57, 0]])
    return jnp.stack(
        [jnp.repeat(jnp.array([1, 2, 3, 0]), row, total_repeat_length=T) for row in lengths_B4]
    )


def _normal(number: int, *shape: int, dtype: jnp.dtype) -> jax.Array:
    """The same normal numbers in each type: all are rounded to bfloat16."""
    x = jax.random.normal(jax.random.fold_in(jax.random.key(0), number), shape, jnp.float32)
    return x.astype(jnp.bfloat16).astype(dtype)


def _packed_case(config: Any, interpret: bool, fast: bool, dtype: jnp.dtype) -> list[jax.Array]:
    """Self-attention, and attention to other rows with as many segments."""
    here, there = _segments(), _segments()[::-1]
    masks = Mask(here, here, jnp.arange(T)), Mask(here, there)
    masks = [mask._replace(spans=spans_of(*mask[:2], 4)) for mask in masks]
    return [x for mask in masks for x in _attention_case(config, interpret, fast, dtype, mask)]


def _attention_case(
    config: Any, interpret: bool, fast: bool, dtype: jnp.dtype, mask: Mask | None = None
) -> list[jax.Array]:
    H, K, segments_BT = config.num_heads, config.key_size, _segments()
    mask = mask or Mask(segments_BT, segments_BT, jnp.arange(T))
    heads = H, config.key_value_heads, config.key_value_heads, H
    query, key, value, direction = (_normal(i, B, heads[i], T, K, dtype=dtype) for i in range(4))
    # In the second row all scores are near -120: e to the 120 is more than float32 can hold.
    query, key = query.at[1, ..., 0].set(-120 * K**0.5), key.at[1, ..., 0].set(1)
    real_B1T1 = (mask.query_segments_BT > 0)[:, None, :, None]

    def attend(query, key, value):
        attend = fast_attention if fast else attention
        return attend(query, KeyValues(key, value), mask)[0] * real_B1T1

    result, pull_back = jax.vjp(attend, query, key, value)
    dquery, dkey, dvalue = pull_back(direction)
    return [result, dquery, dkey[..., 1:], dvalue]  # -120 times the first would hide the others


def _norm_case(config: Any, interpret: bool, fast: bool, dtype: jnp.dtype) -> list[jax.Array]:
    D, rate, epsilon = config.d_model, 0.1, config.norm_epsilon
    x, y, direction = (_normal(i, B, T, D, dtype=dtype) for i in range(3))
    scale_D, bias_D = (_normal(i, D, dtype=jnp.float32) for i in (3, 4))

    def add_and_norm(x, y, scale_D, bias_D):
        rngs = DropoutRngs(jax.random.key(1), jnp.arange(B))
        if fast:
            keys = row_keys(rngs, B)
            settings = fused_norm.Settings(rate, epsilon, interpret)
            return fused_norm.add_and_norm(x, y, keys, scale_D, bias_D, settings)
        z = standardize(x + dropout(y, rate, rngs), epsilon)
        return z * scale_D[None, None] + bias_D[None, None]

    result, pull_back = jax.vjp(add_and_norm, x, y, scale_D, bias_D)
    return [result, *pull_back(direction)]


def _loss_case(config: Any, interpret: bool, fast: bool, dtype: jnp.dtype) -> list[jax.Array]:
    V, D, segments_BT = 997, config.d_model, _segments()
    hidden_BTD = _normal(0, B, T, D, dtype=dtype)
    output_VD = _normal(1, V, D, dtype=jnp.float32) * D**-0.5
    labels_BT = jax.random.randint(jax.random.key(2), (B, T), 0, V)

    def loss(hidden_BTD, output_VD):
        layer = OutputLayer(output_VD, None, dtype, blocked=fast)
        found = output_loss(hidden_BTD, layer, labels_BT, segments_BT > 0, 0.1)
        return found.loss, found.nll

    (value, nll), gradients = jax.value_and_grad(loss, (0, 1), has_aux=True)(hidden_BTD, output_VD)
    return [value, nll, *gradients]


CASES = {
    "cudnn_packed": _packed_case,
    "cudnn_attention": _attention_case,
    "triton_norm": _norm_case,
    "blocked_loss": _loss_case,
}
