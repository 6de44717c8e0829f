"""What kind of work an instruction of a compiled program is."""

import collections
import re
from collections.abc import Iterator

from benchmarks.hlo import Instruction

PRODUCTS, UPDATE, COPIES, OTHER = "matrix products", "update", "copies", "other"
# The last of these in an operation's name says its kind. All but the _ are scopes of the model.
SCOPES = {
    "attention": "attention",
    "add_and_norm": "add & norm",
    "dropout": "dropout, random bits",
    "_threefry": "dropout, random bits",
    "_random_bits": "dropout, random bits",
    "embedding": "embedding",
    "logits": "logits and loss",
    "loss": "logits and loss",
}
KINDS = [PRODUCTS, *dict.fromkeys(SCOPES.values()), UPDATE, COPIES, OTHER]
SCOPE = re.compile(rf"(?<![a-zA-Z])({'|'.join(SCOPES)})(?![a-zA-Z])")
# Attributes: the path of scopes and transformations to an operation; the target of a custom call.
NAME, TARGET = "op_name", "custom_call_target"
PRODUCT = re.compile(r"dot|convolution|custom-call.*(?:gemm|matmul|dot)", re.IGNORECASE)
# Their parts are instructions of their own.
CONTROL = {"while", "conditional", "async-start", "async-done", "async-update"}
WEIGHTLESS = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "broadcast", "iota"}


def kind(instruction: Instruction) -> str:
    """The kind of work of an instruction; for a fusion, that of most of its parts.

    A fusion with a matrix product in it is of that product's kind.
    """
    parts = list(_parts(instruction))
    products = [p for p in parts if PRODUCT.fullmatch(p.opcode + p.attribute(TARGET))]
    weighty = products or [p for p in parts if p.opcode not in WEIGHTLESS] or parts
    if all(p.opcode == "copy" for p in weighty):
        return COPIES
    named = [p.attribute(NAME) for p in weighty if p.attribute(NAME) or products]
    counts = collections.Counter(_kind_of_part(name, bool(products)) for name in named)
    return counts.most_common(1)[0][0] if counts else OTHER


def _parts(instruction: Instruction) -> Iterator[Instruction]:
    if instruction.body is None:
        yield instruction
    else:
        for part in instruction.body.values():
            yield from _parts(part)


def _kind_of_part(op_name: str, is_product: bool) -> str:
    if scopes := SCOPE.findall(op_name):
        return SCOPES[scopes[-1]]
    if is_product:
        return PRODUCTS
    # What is not differentiated is what comes after the gradient.
    return OTHER if "jvp" in op_name or not op_name else UPDATE


def kind_of_kernel(name: str) -> str:
    """The kind of what the program's text does not name: a library's kernel, a transfer."""
    if re.search(r"gemm|cutlass|nvjet|cublas|xmma", name, re.IGNORECASE):
        return PRODUCTS
    if re.search(r"fmha|flash|cudnn.*sdpa", name, re.IGNORECASE):
        return "attention"
    return COPIES if re.search(r"memcpy|memset", name, re.IGNORECASE) else OTHER
