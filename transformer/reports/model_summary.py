"""The modules of a model as a tree: shapes, parameters, and FLOPs counted in its traced program.

Nothing is computed or allocated: a forward pass is traced with shapes in place of arrays. XLA's own
count takes the body of a loop once, and `nnx.tabulate` can call no module with flags or with named
tuples among its arguments.
"""

import collections
import dataclasses
import inspect
import itertools
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from transformer.data.sequences import Labelled, Masked
from transformer.models.family import Sizes, build_model
from transformer.models.functional import FunctionalModel
from transformer.runs.run_config import Config

HEAD = ("module", "kind", "shapes", "parameters", "MFLOPs")
MASKED = 0.15  # of BERT's tokens
UNUSED = 10**9  # the place of what a forward pass does not read


@dataclasses.dataclass(frozen=True)
class Part:
    """A module, or a parameter.

    flops: of the matrix products of a forward pass, with those of the parts inside.
    begins: when the forward pass first comes to the last of its parameters, in operations.
    copies: of modules side by side that are alike; the numbers are those of one.
    """

    name: str
    kind: str = ""  # the module's class; "" for a parameter
    shape: tuple[int, ...] | None = None  # of a parameter
    parameters: int = 0
    flops: float = 0.0
    begins: int = dataclasses.field(default=UNUSED, compare=False)
    parts: tuple["Part", ...] = ()
    copies: int = 1


class Summary(NamedTuple):
    root: Part
    inputs: tuple[str, ...]  # of the forward pass, in words
    last: str  # the module of its last matrix product


def abstract_model(config: Config, classes: int) -> FunctionalModel:
    """The model of a config without its data. classes: of a classifier or of images."""
    if config.tokenizer is None:
        return build_model(config.model, Sizes(classes, classes, False, 1, 1))
    sides = ("max_source_length", "max_target_length")
    longest = [getattr(config.data, x, getattr(config.data, "max_length", None)) for x in sides]
    size, is_joint = config.tokenizer.vocab_size, getattr(config.tokenizer, "joint", True)
    targets = classes if config.task.name == "classification" else size
    return build_model(config.model, Sizes(size, targets, is_joint, *longest))


def summary_of(config: Config, model: FunctionalModel, length: int) -> Summary:
    """The summary of a forward pass over sentences of `length` tokens, or over one image."""
    params, extra = model.abstract_params(), model.abstract_extra()
    kinds = {}

    def forward(params, extra):
        module = model.bind(params, extra)
        for path, part in list(nnx.iter_modules(module)):
            kinds[path] = type(part).__name__
            _name_scopes(part, path)
        return _call(module, config, length)

    jaxpr = jax.make_jaxpr(forward)(params, extra).jaxpr
    paths = [tuple(key.key for key in path) for path, _ in jax.tree.leaves_with_path(params)]
    leaves = dict(zip(jaxpr.invars, paths, strict=False))
    walk = _Walk(leaves)
    walk.follow(jaxpr, (), 1)
    root = _part(config.model.family, (), params, kinds, walk)
    return Summary(root, _inputs(config, length), ".".join(map(str, walk.last)))


def table(summary: Summary) -> list[list[str]]:
    """Rows below HEAD; a module's own parameters are its shapes."""

    def rows(part: Part, depth: int, name: str) -> Iterator[list[str]]:
        own = [f"{x.name} {size(x.shape)}" for x in part.parts if x.shape is not None]
        numbers = f"{part.parameters:,}", f"{part.flops / 1e6:,.2f}"
        yield ["  " * depth + name, part.kind, ", ".join(own), *numbers]
        for inner in part.parts:
            if inner.shape is None:
                last = int(inner.name) + inner.copies - 1 if inner.copies > 1 else None
                name = f"{inner.name}-{last}, each" if last else inner.name
                yield from rows(inner, depth + 1, name)

    return list(rows(summary.root, 0, summary.root.name))


def size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "1"


def _call(module: nnx.Module, config: Config, length: int) -> Any:
    """A forward pass."""
    if config.model.family == "sagan":
        c, label_1 = config.model, jnp.zeros(1, jnp.int32)
        images = module.generator(jnp.zeros((1, c.noise_size)), label_1)
        return module.discriminator(images, label_1)
    ones = jnp.ones((1, length), jnp.int32)
    if config.model.family != "bert":
        source = ones[:, :1] if config.task.name == "language_model" else ones
        return module(source, ones)
    first = ones[:, :1]
    if config.model.head == "none":
        return module.encode(ones, ones - 1, ones)
    if config.model.head == "classification":
        return module.classify(Labelled(ones, ones, ones, first - 1, first, first))
    masked = ones[:, : max(1, round(MASKED * length))]
    return module.predict(Masked(ones, ones, ones, masked, masked, first - 1, first, ones[:, 0]))


def _inputs(config: Config, length: int) -> tuple[str, ...]:
    if config.model.family == "sagan":
        return "noise and a class", "an image and its class"
    if config.model.family == "bert" or config.task.name == "language_model":
        return (f"{length} tokens",)
    return f"{length} source tokens", f"{length} target tokens"


def _name_scopes(part: nnx.Module, path: tuple[Any, ...]) -> None:
    """Gives this module methods whose operations are in a scope of its name."""
    kind = type(part)
    methods = {name: inspect.getattr_static(kind, name) for name in dir(kind)}
    scope = jax.named_scope("@" + ".".join(map(str, path)))
    own = {
        name: scope(method)
        for name, method in methods.items()
        if inspect.isfunction(method) and (name == "__call__" or not name.startswith("__"))
    }
    object.__setattr__(part, "__class__", type(kind)(kind.__name__, (kind,), own))


class _Walk:
    """Follows a program: the FLOPs of modules, and when it comes to modules and parameters."""

    def __init__(self, leaves: dict[Any, tuple[Any, ...]]):
        """leaves: the paths of parameters, by variable of the program."""
        self.flops: collections.Counter[tuple[Any, ...]] = collections.Counter()
        self.begins: dict[tuple[Any, ...], int] = {}
        self.last: tuple[Any, ...] = ()
        self._leaves, self._clock = leaves, itertools.count()

    def follow(self, jaxpr: Any, module: tuple[Any, ...], times: int) -> None:
        for eqn in jaxpr.eqns:
            now = next(self._clock)
            scopes = re.findall(r"@([\w.]*)", str(eqn.source_info.name_stack))
            here = _path(scopes[-1]) if scopes else module
            read = [x for x in eqn.invars if not hasattr(x, "val")]  # literals have no hash
            for path in [here, *(self._leaves[x] for x in read if x in self._leaves)]:
                self.begins.setdefault(path, now)
            if flops := _flops(eqn):
                self.flops[here] += flops * times
                self.last = here
            inside = [y for x in eqn.params.values() for y in _programs(x)]
            for program in inside[-1:] if eqn.primitive.name == "cond" else inside:
                self.follow(program, here, times * eqn.params.get("length", 1))


def _path(scope: str) -> tuple[Any, ...]:
    return tuple(int(x) if x.isdigit() else x for x in scope.split(".") if x)


def _programs(value: Any) -> list[Any]:
    """The programs in a parameter of an operation."""
    values = value if isinstance(value, tuple | list) else [value]
    programs = [getattr(x, "jaxpr", x) for x in values]
    return [x for x in programs if hasattr(x, "eqns")]


def _flops(eqn: Any) -> int:
    """Those of a matrix product or a convolution; the rest is small beside them."""
    if eqn.primitive.name not in ("dot_general", "conv_general_dilated"):
        return 0
    left, right = (x.aval.shape for x in eqn.invars)
    if eqn.primitive.name == "dot_general":
        ((contracted, _), _) = eqn.params["dimension_numbers"]
        each = math.prod(left[i] for i in contracted)
    else:  # the kernel's input channels are those of a group
        numbers = eqn.params["dimension_numbers"].rhs_spec
        each = math.prod(right[i] for i in numbers[1:])
    return 2 * each * math.prod(eqn.outvars[0].aval.shape)


def _part(name: str, path: tuple, params: Any, kinds: dict, walk: _Walk) -> Part:
    if not isinstance(params, dict):
        # A loop reads all its parameters at once; its modules begin one after another.
        begins = max(walk.begins.get(path, UNUSED), walk.begins.get(path[:-1], 0))
        return Part(name, "", params.shape, params.size, 0.0, begins)
    parts = [_part(str(key), (*path, key), x, kinds, walk) for key, x in params.items()]
    flops = sum(x.flops for x in parts)
    # Modules without parameters, such as sinusoids, belong to the one around them.
    inside = {(*path, key) for key in params}
    flops += sum(
        own
        for at, own in walk.flops.items()
        if at[: len(path)] == path and not any(at[: len(x)] == x for x in inside)
    )
    if not parts[0].name.isdigit():  # a list has an order of its own
        parts = sorted(parts, key=lambda x: x.begins)
    merged: list[Part] = []
    for part in parts:
        last = merged[-1] if merged and part.name.isdigit() else None
        if last and last == dataclasses.replace(part, name=last.name, copies=last.copies):
            merged[-1] = dataclasses.replace(last, copies=last.copies + 1)
        else:
            merged.append(part)
    size, begins = sum(x.parameters for x in parts), max(x.begins for x in parts)
    return Part(name, kinds.get(path, "Dict"), None, size, flops, begins, tuple(merged))
