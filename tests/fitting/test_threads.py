"""Small fits run on one thread and leave the number of threads as it was."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

import matheron
from examples import rand, randn
from matheron import kernels as K


@pytest.fixture(autouse=True)
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def fit_watched_by(watch: Callable[[], object], n: int = 20, **settings) -> None:
    """A fit with a flat prior that calls `watch` at every evaluation."""

    def flat(value: torch.Tensor) -> torch.Tensor:
        watch()
        return 0.0 * value

    matheron.fit(K.RBF(0.3), rand(n, 1), randn(n, seed=1), num_starts=1, priors={"noise": flat}, **settings)


@pytest.mark.parametrize("n, threads", [(20, 1), (1001, 3)])
def test_small_work_has_one_thread_and_large_work_all(n, threads):
    seen = []
    fit_watched_by(lambda: seen.append(torch.get_num_threads()), n, solver="cholesky")
    _, *during = seen  # the first call checks the prior, before the search
    assert max(during) == threads and torch.get_num_threads() == 3


def test_a_fit_that_fails_leaves_the_number_of_threads_as_it_was():
    def fail():
        raise KeyError

    with pytest.raises(KeyError):
        fit_watched_by(fail)
    assert torch.get_num_threads() == 3


def test_the_number_of_threads_survives_fits_at_the_same_time():
    both = Barrier(2)

    def work(_):
        waited = []

        def watch():
            if not waited:  # both are in before one is out
                waited.append(both.wait(20))

        fit_watched_by(watch)
        return torch.get_num_threads()

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, range(2))) == [3, 3]
    assert torch.get_num_threads() == 3
