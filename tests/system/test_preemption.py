import signal

import pytest

from transformer.system.preemption import Stopped, StopRequest
from transformer.system.sharding import data_mesh
from transformer.system.startup import STOP_SIGNALS


@pytest.mark.parametrize("number", [*STOP_SIGNALS, signal.SIGINT])
def test_any_signal_stops(number, capfd):
    before = signal.getsignal(number)
    with StopRequest() as stop:
        with pytest.raises(Stopped) as stopped:
            signal.raise_signal(number)
        assert stopped.value.code == 75
        assert not stopped.value.together
        assert signal.getsignal(number) == signal.SIG_DFL  # the second one ends the process
        assert stop.seen()
    assert signal.getsignal(number) == before
    assert capfd.readouterr().err == f"{number.name}: stopping\n"


def test_during_the_steps_it_is_asked(capfd):
    with StopRequest() as stop:
        stop.wait_for_steps(data_mesh())
        assert not stop.seen()
        signal.raise_signal(signal.SIGTERM)
        assert stop.seen()
    said = "SIGTERM: stopping after this step; a second signal ends it now\n"
    assert capfd.readouterr().err == said


class Finalized:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_a_finalizer_swallows_stops_before_the_first_step():
    with StopRequest() as stop:
        Finalized()  # nothing is raised here
        with pytest.raises(Stopped):
            stop.wait_for_steps(data_mesh())
