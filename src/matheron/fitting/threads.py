"""One thread for small work.

Torch's threads and those of SciPy's BLAS wait for work by spinning, and on few cores each keeps the other from running:
on two cores a fit of 100 observations took five times as long on two threads as on one, and ten beside other work.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Up to this many observations a dense likelihood is faster on one thread.
SMALL = 1000

_lock = threading.Lock()
_users, _before = 0, 1


@contextmanager
def threads_for(n: int) -> Iterator[None]:
    """One thread within, where n observations are few; as many as there were after the last user is done."""
    global _users, _before
    if n > SMALL:
        yield
        return
    with _lock:
        if _users == 0:
            _before = torch.get_num_threads()
        _users += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            torch.set_num_threads(_before)  # of this thread, too
