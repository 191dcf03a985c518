"""Small fits run on one thread and leave the number of threads as it was."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from matheron.fitting.threads import SMALL, threads_for


@pytest.fixture(autouse=True)
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_small_work_has_one_thread_and_large_work_all():
    with threads_for(SMALL):
        assert torch.get_num_threads() == 1
    with threads_for(SMALL + 1):
        assert torch.get_num_threads() == 3
    with pytest.raises(KeyError), threads_for(10):
        raise KeyError
    assert torch.get_num_threads() == 3


def test_the_number_of_threads_survives_fits_at_the_same_time():
    inside = Barrier(2)

    def work(_):
        with threads_for(10):
            inside.wait(20)  # both are in before one is out
            assert torch.get_num_threads() == 1
        return torch.get_num_threads()

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, range(2))) == [3, 3]
    assert torch.get_num_threads() == 3
