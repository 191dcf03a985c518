"""How the benchmarks measure: seconds, and memory in a process of its own."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

LEAST = 0.05  # seconds: a shorter call is repeated within a measurement, after one that does not count
PAUSE = 0.05  # seconds before a measurement: another process's threads may still wait actively for work
WARM = 0.5  # seconds of calls before the first of a short one: a new process touches its memory for the first time

# The workers' server imports these once. JAX is not among them: it starts threads, and a fork loses them.
PRELOADED = ["botorch", "matheron", "sklearn.gaussian_process", "torch.fx.experimental.symbolic_shapes"]


def median_seconds(calls: Sequence[Callable[[], Any]], repeats: int, least: float = LEAST) -> list[float]:
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


def best(call: Callable[[], Any], repeats: int = 9) -> float:
    """The least time of several calls, after one that does not count."""
    call()
    return min(_seconds(call, 1) for _ in range(repeats))


def _seconds(call: Callable[[], Any], loops: int) -> float:
    start = time.perf_counter()
    for _ in range(loops):
        call()
    return (time.perf_counter() - start) / loops


@dataclass
class Prepared:
    """A call to be measured, and what tells the error of its values."""

    call: Callable[[], Any]
    error: Callable[[], float] | None = None


class Meter:
    """Measures a call in the process that it is in."""

    def __init__(self, prepared: Prepared, cuda: bool = False, warm: float = WARM):
        self.prepared, self.cuda, self.warm, self.loops = prepared, cuda, warm, 0

    def memory(self) -> int:
        """The most bytes that a call holds beyond what was there before it, its answer included."""
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            self._call()
            return torch.cuda.max_memory_allocated() - before
        if not sys.platform.startswith("linux"):  # the mark cannot be put back: below what there was, nothing is seen
            before = _max_rss()
            self._call()
            return _max_rss() - before
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # give back what was freed before, or the call may use it unseen
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again from here
        before = _status("VmRSS")
        self._call()
        return max(0, _status("VmHWM") - before)  # the kernel's counts are a few pages late

    def seconds(self) -> float:
        """The time of one call, or of each of many short ones. On a GPU each call waits until the device is done."""
        if not self.cuda:
            time.sleep(PAUSE)
        if not self.loops:
            first = _seconds(self._call, 1)
            if first < LEAST:
                start = time.perf_counter()
                while time.perf_counter() - start < self.warm:
                    first = _seconds(self._call, 1)
            self.loops = max(1, min(1000, int(LEAST / first)))
            if first > LEAST:
                return first
        if self.loops > 1:  # caches are another process's
            self._call()
        return _seconds(self._call, self.loops)

    def error(self) -> float | None:
        return None if self.prepared.error is None else self.prepared.error()

    def ready(self) -> None:
        """Says that the preparation is over."""

    def close(self) -> None:
        self.prepared = Prepared(lambda: None)
        if self.cuda:
            torch.cuda.empty_cache()

    def _call(self) -> None:
        answer = self.prepared.call()
        if self.cuda:
            torch.cuda.synchronize()
        del answer


class Worker:
    """A `Meter` in a process of its own, for the high-water mark of a process never falls.

    The process is forked from a server that has imported the libraries and done nothing else. `prepare` must be a
    function of a module that returns a `Prepared`; it starts at once. Every question raises EOFError if the process was
    killed, which is what happens when there is no memory left.
    """

    def __init__(self, prepare: Callable[..., Prepared], *args: Any, threads: int, warm: float = WARM):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, prepare, args, threads, warm), daemon=True)
        self.process.start()  # a daemon: it ends with us, whatever happens
        theirs.close()

    def ready(self) -> None:
        self._ask("ready")

    def memory(self) -> int:
        return self._ask("memory")

    def seconds(self) -> float:
        return self._ask("seconds")

    def error(self) -> float | None:
        return self._ask("error")

    def close(self) -> None:
        self.pipe.close()
        self.process.join()

    def _ask(self, what: str) -> Any:
        try:
            self.pipe.send(what)
        except BrokenPipeError:  # it failed before, and its answer is waiting, or it was killed
            pass
        answer = self.pipe.recv()
        if isinstance(answer, BaseException):
            raise answer
        return answer


def _serve(
    pipe: Connection, prepare: Callable[..., Prepared], args: tuple[Any, ...], threads: int, warm: float
) -> None:
    try:
        if hasattr(os, "sched_setaffinity"):  # for the libraries that take no number of threads
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
        torch.set_num_threads(threads)
        with ThreadPoolExecutor(1) as other:  # memory that a library keeps for each thread then counts in the call
            meter = Meter(other.submit(prepare, *args).result(), warm=warm)
        while True:
            pipe.send(getattr(meter, pipe.recv())())
    except EOFError:  # the other end is closed: no more questions
        pass
    except Exception as error:
        try:
            pipe.send(error)
        except Exception:  # not every exception can be sent
            pipe.send(RuntimeError(f"{type(error).__name__}: {error}"))


def _max_rss() -> int:
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)
