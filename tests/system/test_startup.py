import signal

import pytest

from transformer.system.startup import listen_to_interrupts


@pytest.fixture
def listening():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    listen_to_interrupts()
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_in_a_callback_of_the_garbage_collector_is_not_lost(listening):
    def _xla_gc_callback():  # as JAX calls it
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    _xla_gc_callback()  # nothing is raised here
    with pytest.raises(KeyboardInterrupt):
        signal.sigtimedwait([], 10)
