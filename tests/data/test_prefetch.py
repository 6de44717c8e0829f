import threading

import pytest

from transformer.data.prefetch import prefetch


def test_results_in_order():
    assert list(prefetch(lambda x: x * x, range(11))) == [x * x for x in range(11)]
    assert list(prefetch(str, range(2), ahead=3)) == ["0", "1"]
    assert list(prefetch(str, [])) == []


def test_so_many_ahead_and_no_more():
    done, enough = [], threading.Event()

    def function(x):
        done.append(x)
        if x == 3:
            enough.set()
        return x

    results = prefetch(function, range(11), ahead=3)
    assert done == []  # nothing before the first is asked for
    assert next(results) == 0
    assert enough.wait(10)
    results.close()
    assert done == [0, 1, 2, 3]


def test_an_error_arrives_where_its_result_would():
    def function(x):
        if x == 2:
            raise ValueError("no 2")
        return x

    results = prefetch(function, range(11))
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="no 2"):
        next(results)
    with pytest.raises(StopIteration):
        next(results)


def test_closing_ends_the_thread():
    before = threading.active_count()
    results = prefetch(lambda x: x, iter(int, 1))  # zeros without end
    next(results)
    assert threading.active_count() == before + 1
    results.close()
    assert threading.active_count() == before
