"""Work done ahead, in threads or processes."""

import collections
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar

In = TypeVar("In")
Out = TypeVar("Out")


def prefetch(
    function: Callable[[In], Out], items: Iterable[In], ahead: int = 2, threads: int = 1
) -> Iterator[Out]:
    """Yields function(item) of each item in order, computed in threads up to `ahead` early."""
    with ThreadPoolExecutor(threads, thread_name_prefix="prefetch") as executor:
        yield from in_order(executor, function, items, ahead)


def in_order(
    executor: Executor, function: Callable[[In], Out], items: Iterable[In], ahead: int
) -> Iterator[Out]:
    """The same, computed by an executor."""
    futures: collections.deque = collections.deque()
    try:
        for item in items:
            futures.append(executor.submit(function, item))
            if len(futures) > ahead:
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()
    finally:
        for future in futures:
            future.cancel()
