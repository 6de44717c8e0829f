"""Batches for decoding: the sentences of each, and the shapes of their arrays."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer.models.weight_layout import WeightLayout
from transformer.system.cpu import available_cores
from transformer.system.errors import UserError
from transformer.system.hardware import memory_limit, memory_of_host, units

SHORTEST_WIDTH = 16
# A CPU of several cores searches two batches at the same time. In a small model, cores that share
# one product mostly wait for each other.
AT_ONCE = 2
# The most source tokens of these batches together, padding included. More were not faster.
CPU_TOKENS = 2048
# The most hypotheses. Each has a cache, so a wide beam leaves fewer sentences per batch.
CPU_HYPOTHESES = 1024
MOST_ROWS = 4096
FEW_TOKENS = 2**16  # of all hypotheses of a sentence; there is always memory for these
FEW_ROWS = range(2, 33)  # hypotheses for which WeightLayout.FEW_ROWS is faster


class Shape(NamedTuple):
    """Sentences, and tokens of each with padding; a program is compiled for each shape."""

    rows: int
    width: int


def most_rows(
    width: int,
    beam_size: int,
    bytes_of_row: Callable[[int], int],
    device: jax.Device,
    at_once: int = 1,
) -> int:
    """The number of sentences of that width that the device decodes in one batch, a power of 2.

    On an accelerator its memory decides: a quarter of it is for the search.
    bytes_of_row: from a width to the bytes of a sentence in a search.
    at_once: how many batches share a CPU.
    """
    memory = memory_limit(device)
    if memory is None:
        fit = min(CPU_TOKENS // width, CPU_HYPOTHESES // beam_size) // at_once
    else:
        fit = min(memory // 4 // bytes_of_row(width), MOST_ROWS)
    return 1 << (max(1, fit).bit_length() - 1)


def row_bytes(model: Any, variables: Any, width: int, beam_size: int, longest: int) -> int:
    """The bytes of a sentence of `width` tokens in a search: its cache, and its logits.

    model: a FunctionalModel or an Ensemble. longest: the most tokens of an output.
    """

    def step(variables, src_BS):
        bound = model.bind(*variables)
        cache = bound.init_cache(bound.encode(src_BS), src_BS, beam_size, longest)
        return bound.decode_step(jnp.zeros(beam_size, np.int32), cache)

    logits_MV, cache = jax.eval_shape(step, variables, jax.ShapeDtypeStruct((1, width), np.int32))
    # The logits, and arrays made of them, exist a few times, in float32.
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(cache)) + 16 * logits_MV.size


def check_memory(beam_size: int, longest: int, bytes_of_row: Callable[[], int]) -> None:
    """Raises UserError for a search of one sentence that this machine has no memory for."""
    if beam_size * longest <= FEW_TOKENS:  # counting bytes takes time
        return
    needed, host = bytes_of_row(), memory_of_host()
    if needed > host:
        raise UserError(
            f"a search of {beam_size:,} hypotheses of at most {longest:,} tokens needs at least "
            f"{units(needed)} of memory, and there is {units(host)}; ask for fewer, or lower "
            "decoding.max_extra_length, decoding.max_length_ratio or decoding.max_length"
        )


def batches_at_once(
    mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh,
    shapes: Iterable[Shape] = (),
    beam_size: int = 1,
) -> int:
    """The number of batches of these shapes that are searched at the same time.

    One if more exceed the limits of a CPU, and where several devices work together: all must run
    the same program.
    """
    if not is_of_cpus(mesh) or mesh.size > 1 or available_cores() == 1:
        return 1
    fit = all(
        AT_ONCE * shape.rows * shape.width <= CPU_TOKENS
        and AT_ONCE * shape.rows * beam_size <= CPU_HYPOTHESES
        for shape in shapes
    )
    return AT_ONCE if fit else 1


def is_of_cpus(mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh) -> bool:
    # An abstract mesh, for programs of devices that are not here, has no platform.
    return isinstance(mesh, jax.sharding.Mesh) and mesh.devices.flat[0].platform == "cpu"


def layout_for(rows: int, int8: bool = False) -> WeightLayout:
    """The weight layout for a search of this many hypotheses on each CPU device."""
    if int8:
        return WeightLayout.INT8
    return WeightLayout.FEW_ROWS if rows in FEW_ROWS else WeightLayout.MANY_ROWS


def batches(
    lengths: Sequence[int], most_rows: Callable[[int], int], num_devices: int
) -> list[tuple[Shape, list[int]]]:
    """The shape and the members of each batch; sentences of length 0 are in none.

    most_rows: from a width to the rows of each device.

    Widths are few, because a program is compiled for each shape: 16, 32, 48, 64, 96, 128, ... The
    longest come first: if memory runs out, it does so at the start. Shorter ones fill the rows that
    are left. The last batch has a quarter of the most rows, or a quarter of that, ..., if that is
    enough and the larger shape is not needed anyway: a single sentence is decoded by itself.
    """
    order = sorted((i for i in range(len(lengths)) if lengths[i]), key=lambda i: -lengths[i])
    found: list[tuple[Shape, list[int]]] = []
    while order:
        width = width_of(lengths[order[0]])
        rows = most_rows(width)
        if not found or found[-1][0] != (rows * num_devices, width):
            while rows > 1 and len(order) <= max(1, rows // 4) * num_devices:
                rows = max(1, rows // 4)
        shape = Shape(rows * num_devices, width)
        found.append((shape, order[: shape.rows]))
        order = order[shape.rows :]
    return found


def width_of(length: int) -> int:
    """The width of rows for sentences of at most this length; widths are few, as programs are."""
    power = 1 << (length - 1).bit_length()
    between = power * 3 // 4
    return max(SHORTEST_WIDTH, between if between > 32 and length <= between else power)
