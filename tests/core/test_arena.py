"""The arena: memory is used again, given back, and never given twice at once or kept by an answer."""

import threading

import pytest
import torch

from matheron import ExactGP, draw
from matheron import kernels as K
from matheron.core import arena as scratch

LIKE = torch.zeros((), dtype=torch.float64)


def place(tensor: torch.Tensor) -> range:
    start = tensor.data_ptr()
    return range(start, start + tensor.numel() * tensor.element_size())


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    return max(place(a).start, place(b).start) < min(place(a).stop, place(b).stop)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 4), (7,), (0, 4), ()])
def test_empty_has_the_shape_and_dtype_asked_for_inside_and_outside(shape, dtype):
    outside = scratch.empty(shape, LIKE.to(dtype))
    with scratch.arena():
        inside = scratch.empty(shape, LIKE.to(dtype))
        assert inside.shape == outside.shape == shape and inside.dtype == outside.dtype == dtype
        assert inside.is_contiguous() and inside.data_ptr() % dtype.itemsize == 0


def test_what_is_held_at_once_does_not_overlap():
    with scratch.arena():
        held = [
            scratch.empty((13, 7), LIKE.to(dtype)).fill_(i)
            for i, dtype in enumerate([torch.float32, torch.float64] * 3)
        ]
        for i, a in enumerate(held):
            assert (a == i).all() and not any(overlap(a, b) for b in held[:i])


def test_a_frame_gives_back_what_it_gave_and_no_more():
    with scratch.arena():
        before = scratch.empty((10,), LIKE)
        with scratch.frame():
            first = scratch.empty((10,), LIKE)
            with scratch.frame():
                scratch.empty((10,), LIKE)
        again = scratch.empty((10,), LIKE)
        assert again.data_ptr() == first.data_ptr() and not overlap(before, again)


def test_frames_give_back_after_an_error_too():
    with scratch.arena():
        start = scratch.empty((1,), LIKE).data_ptr()
        with pytest.raises(KeyError), scratch.frame():
            scratch.empty((10,), LIKE)
            raise KeyError
        after = scratch.empty((1,), LIKE).data_ptr()
    assert after - start == 64  # the next aligned place
    with pytest.raises(KeyError), scratch.arena():
        raise KeyError
    assert getattr(scratch._local, "arena", None) is None


def test_an_arena_is_used_again_and_is_nobody_s_outside():
    with scratch.arena():
        first = scratch.empty((10,), LIKE).data_ptr()
    outside = scratch.empty((10,), LIKE)
    with scratch.arena():
        assert scratch.empty((10,), LIKE).data_ptr() == first
        assert not overlap(outside, scratch._local.arena.memory)


def test_an_arena_inside_another_goes_on_from_it_and_gives_back():
    with scratch.arena():
        outer = scratch.empty((10,), LIKE)
        with scratch.arena():
            inner = scratch.empty((10,), LIKE)
            assert not overlap(outer, inner)
        assert scratch.empty((10,), LIKE).data_ptr() == inner.data_ptr()


def test_what_does_not_fit_is_allocated(monkeypatch):
    monkeypatch.setattr(scratch._Arena, "num_bytes", 1024)
    monkeypatch.setattr(scratch, "_local", threading.local())
    with scratch.arena():
        fits, does_not = scratch.empty((100,), LIKE), scratch.empty((100,), LIKE)
        memory = scratch._local.arena.memory
        assert overlap(fits, memory) and not overlap(does_not, memory)
        assert overlap(scratch.empty((8,), LIKE), memory)  # and the rest still serves


def test_each_thread_has_an_arena_of_its_own():
    places = []

    def work() -> None:
        with scratch.arena():
            places.append(scratch.empty((10,), LIKE))

    with scratch.arena():
        mine = scratch.empty((10,), LIKE)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert not overlap(mine, places[0])


@pytest.fixture
def paths(generator):
    kernel = K.Matern(2.5, 0.4) + K.RBF(0.3) * K.Linear() + 0.5 * K.Matern(0.5, 0.6)
    X = torch.rand(20, 2, generator=generator, dtype=torch.float64)
    return draw(ExactGP(kernel, X, X.sum(1), 0.1), 6, num_features=33, paths_per_basis=3, generator=generator)


@pytest.mark.parametrize("own", [False, True])
def test_blocks_give_everything_back_and_no_answer_lies_in_the_arena(paths, own, small_blocks, monkeypatch, generator):
    monkeypatch.setattr(scratch, "_local", threading.local())
    x = torch.rand(6 if own else 1, 50, 2, generator=generator, dtype=torch.float64)
    x = x if own else x[0]
    whole, (value, gradient) = paths(x), paths.value_and_grad(x)
    small_blocks(200)  # a few points per block
    blocked, (blocked_value, blocked_gradient) = paths(x), paths.value_and_grad(x)
    arena = scratch._local.spare
    assert arena.used == 0
    arena.memory.fill_(255)  # NaN in any floating dtype
    for ours, expected in ((blocked, whole), (blocked_value, value), (blocked_gradient, gradient)):
        assert not overlap(ours, arena.memory)
        torch.testing.assert_close(ours, expected)


def test_stale_memory_is_never_read(paths, small_blocks, monkeypatch, generator):
    """Every temporary is written before it is read: NaN in the arena reaches no answer."""
    monkeypatch.setattr(scratch, "_local", threading.local())
    small_blocks(1 << 20)
    x = torch.rand(30, 2, generator=generator, dtype=torch.float64)
    first = paths(x)
    scratch._local.spare.memory.fill_(255)
    assert torch.equal(paths(x), first)
