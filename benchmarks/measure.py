"""How the benchmarks measure: seconds, memory, and what the machine could do at best."""

from __future__ import annotations

import ctypes
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch


def median_seconds(calls: Sequence[Callable[[], Any]], repeats: int, least: float = 0.02) -> list[float]:
    """The median time of each call. They take turns, so that a machine that slows down slows all of them.

    One call of each goes unmeasured. A call shorter than `least` seconds is repeated within a measurement.
    """
    loops = []
    for call in calls:
        call()
        loops.append(max(1, min(1000, int(least / _seconds(call, 1)))))
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for i, call in enumerate(calls):
            times[i].append(_seconds(call, loops[i]))
    return [statistics.median(t) for t in times]


def _seconds(call: Callable[[], Any], loops: int) -> float:
    start = time.perf_counter()
    for _ in range(loops):
        call()
    return (time.perf_counter() - start) / loops


def extra_bytes(prepare: Callable[..., Callable[[], Any]], *args: Any, threads: int) -> int | None:
    """The most memory that `prepare(*args)()` holds beyond what was there before the call, its answer included.

    Measured in a process of its own, for the high-water mark of a process never falls. The process is forked from a
    server that has imported the libraries and done nothing else. `prepare` must be a function of a module. None where
    the process was killed: out of memory.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["botorch", "matheron"])
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_in_child, args=(theirs, prepare, args, threads))
    child.start()
    theirs.close()
    try:
        answer = ours.recv()
    except EOFError:
        answer = None
    child.join()
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _in_child(pipe: Connection, prepare: Callable[..., Callable[[], Any]], args: tuple[Any, ...], threads: int) -> None:
    try:
        torch.set_num_threads(threads)
        with ThreadPoolExecutor(1) as other:  # memory that a library keeps for each thread then counts in the call
            call = other.submit(prepare, *args).result()
        pipe.send(_extra_bytes(call))
    except Exception as error:
        pipe.send(error)


def _extra_bytes(call: Callable[[], Any]) -> int:
    if not sys.platform.startswith("linux"):  # the mark cannot be put back: below what `prepare` held, nothing is seen
        before = _max_rss()
        call()
        return _max_rss() - before
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # give back what `prepare` freed, or the call may use it unseen
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again from here
    before = _status("VmRSS")
    call()
    return _status("VmHWM") - before


def _max_rss() -> int:
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


def ceilings(dtype: torch.dtype, quick: bool) -> dict[str, float]:
    """The most that torch does a second, here and now: cosines, exponentials, roots, operations of a square product."""
    block = torch.rand(512, 512 if quick else 4096, dtype=dtype) * 30
    negative, out = -block, torch.empty_like(block)
    n = 256 if quick else 2048
    a, b, c = (torch.rand(n, n, dtype=dtype) for _ in range(3))
    return {
        "trig": block.numel() / _best(lambda: torch.cos(block, out=out)),
        "exp": block.numel() / _best(lambda: torch.exp(negative, out=out)),
        "sqrt": block.numel() / _best(lambda: torch.sqrt(block, out=out)),
        "flops": 2 * n**3 / _best(lambda: torch.mm(a, b, out=c)),
    }


def _best(call: Callable[[], Any], repeats: int = 9) -> float:
    call()
    return min(_seconds(call, 1) for _ in range(repeats))
