"""JSON files that were damaged or made by a stranger: a seeded loop of small mutations."""

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from transformer.system.errors import UserError

NAN, INFINITE, LARGE = float("nan"), float("inf"), 10**39
VALUES = [None, True, 3, -1, 2.5, NAN, INFINITE, LARGE, "x", "\ud800", "../../x", "\0"]
VALUES += [[], [1], ["a"], [[]], [{}], {}, {"a": 1}, {"score": "x"}, {"score": None}]


def damaged(content: Any, count: int, encode: Callable[[Any], bytes] | None = None) -> Iterator:
    """The bytes of `content` with a value replaced, removed or added, or with broken bytes.

    encode: gives the file's bytes of the content (default: JSON).
    """
    encode = encode or (lambda value: json.dumps(value).encode())
    random_ = random.Random(0)
    for _ in range(count):
        if random_.random() < 0.25:
            text = encode(content)
            place = random_.randrange(len(text))
            broken = random_.choice([b"\0", b"\xff", 99_999 * b"[", 99_999 * b"9", b'"a":1,"a":1,'])
            yield random_.choice([text[:place], text[:place] + broken + text[place:]])
        else:
            yield encode(_changed(copy.deepcopy(content), random_))


def _changed(content: Any, random_: random.Random) -> Any:
    for _ in range(random_.choice([1, 1, 2])):
        places = [place for place in _places(content, ()) if place]
        if not places or random_.random() < 0.03:
            return random_.choice(VALUES)
        *path, last = random_.choice(places)
        inner = content
        for name in path:
            inner = inner[name]
        if random_.random() < 0.25:
            del inner[last]
        elif random_.random() < 0.1 and isinstance(inner, dict):
            inner[random_.choice(["new", "", "a/b", "eval/x"])] = random_.choice(VALUES)
        else:
            inner[last] = copy.deepcopy(random_.choice(VALUES))
    return content


def _places(content: Any, path: tuple) -> Iterator[tuple]:
    yield path
    items = enumerate(content) if isinstance(content, list) else ()
    for name, value in content.items() if isinstance(content, dict) else items:
        yield from _places(value, (*path, name))


def as_lines(content: Any) -> bytes:
    """JSON lines."""
    lines = content if isinstance(content, list) else [content]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def assert_used_or_refused(use: Callable[[], Any], name: str, content: bytes) -> bool:
    """Whether a file could be used; if not, a short UserError must name it."""
    message = None
    try:
        use()
    except UserError as refusal:
        message = str(refusal)
    except Exception as defect:
        raise AssertionError(content[:300]) from defect
    assert message is None or (name in message and len(message) < 1000), message
    return message is None
