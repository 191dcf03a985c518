"""Trials in this process, or spread over several.

Each worker process has a pipe of its own and one trial at a time (or a block of trials that a GPU runs together), so
when one dies it is known which trial it took with it. That trial is run once more; when it kills a second worker it is
marked as failed, and the rest continue. The trials of a block are then run one by one.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from multiprocessing import connection, get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import TYPE_CHECKING, NamedTuple, cast

import torch

from .base import Experiment, Settings, Trial
from .report import Cell, Row

if TYPE_CHECKING:
    from distributed import Client, Future

# The number of times that a trial can end its worker before it counts as failed.
ATTEMPTS = 2
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Task(NamedTuple):
    """What a worker must know, beside the trial."""

    experiment: Experiment
    settings: Settings
    device: str


class Outcome(NamedTuple):
    """A trial that has ended, and its record; or, where `died` says how its worker did, one that will be run again."""

    trial: Trial
    record: Mapping[str, Cell]
    died: str | None = None


Block = Sequence[Trial]  # trials of one case that run together, often only one
NextBlock = Callable[[], Block | None]
Outcomes = Generator[Outcome, None, None]


def perform(task: Task, trial: Trial) -> Row:
    """Run one trial, here. An exception is a result too: it is recorded, and the other trials continue."""
    began = time.perf_counter()
    try:
        facts: Row = {"result": task.experiment.run(trial, task.settings, torch.device(task.device))}
    except Exception as error:
        facts = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    return _record(task, trial, **facts, seconds=round(time.perf_counter() - began, 3))


def _record(task: Task, trial: Trial, **facts: Cell) -> Row:
    return {"case": dict(trial.case), "trial": trial.number, **facts, "device": task.device}


def perform_block(task: Task, block: Block, advance: Callable[[float], None] | None = None) -> list[Row]:
    """Run the trials of a block: together where there are several. If that fails, each is run alone."""
    together = task.experiment.run_together
    if len(block) == 1 or together is None:
        return [perform(task, trial) for trial in block]
    share_done = None if advance is None else lambda share: advance(share * len(block))
    began = time.perf_counter()
    try:
        results = together(block, task.settings, torch.device(task.device), share_done)
    except Exception as error:
        # for example, the block is too large for the device; a trial's own error is recorded when it runs alone
        return [{**perform(task, trial), "not together": f"{type(error).__name__}: {error}"} for trial in block]
    share = {"seconds": round((time.perf_counter() - began) / len(block), 3), "together": len(block)}
    return [_record(task, trial, result=result, **share) for trial, result in zip(block, results, strict=True)]


def in_this_process(task: Task, next_block: NextBlock, advance: Callable[[float], None]) -> Outcomes:
    """Outcomes, one after the other; `advance` is called with the number of a block's trials that are done."""
    while (block := next_block()) is not None:
        yield from map(Outcome, block, perform_block(task, block, advance))


def in_processes(task: Task, next_block: NextBlock, workers: int) -> Outcomes:
    """Outcomes as they come, from that many processes."""
    threads = max(1, usable_cores() // workers)
    again: list[Block] = []
    deaths: Counter[str] = Counter()
    busy: dict[Connection, tuple[SpawnProcess, Block]] = {}  # the pipe of a worker -> its process and its trials
    idle: list[tuple[SpawnProcess, Connection]] = []
    try:
        while True:
            while len(busy) < workers and (block := again.pop() if again else next_block()) is not None:
                process, pipe = idle.pop() if idle else _start(task, threads)
                busy[pipe] = process, block
                with suppress(OSError):  # if the worker is dead already, reading from the pipe shows it
                    pipe.send(block)
            if not busy:
                return
            for pipe in cast("list[Connection]", connection.wait(list(busy))):
                process, block = busy.pop(pipe)
                try:
                    records = pipe.recv()
                except (EOFError, ConnectionResetError):
                    process.join()
                    how, first = _how_it_ended(process.exitcode), block[0]
                    # if several trials ran together, the one that failed is not known, so each runs alone
                    deaths[first.key] += len(block) == 1
                    if deaths[first.key] < ATTEMPTS:
                        again += [[trial] for trial in block]
                        yield Outcome(first, {}, died=how)
                    else:
                        error = f"its worker process {how}, {ATTEMPTS} times"
                        yield Outcome(first, _record(task, first, error=error))
                else:
                    idle.append((process, pipe))
                    yield from map(Outcome, block, records)
    finally:
        for process, _ in [*idle, *busy.values()]:
            process.terminate()
        for process, _ in [*idle, *busy.values()]:
            process.join()


def on_cluster(task: Task, next_block: NextBlock, client: Client) -> Outcomes:
    """Outcomes as they come, from the workers of a Dask cluster: as many blocks at a time as it has threads.

    Dask runs a block again whose worker died, on another, until it has taken as many down as Dask's setting
    `distributed.scheduler.allowed-failures` says.
    """
    from distributed import as_completed

    running: dict[Future, Block] = {}
    done = as_completed(loop=client.loop)

    def submit(block: Block) -> None:
        # The task is sent with each block, because scattered data are lost with the workers that have them.
        future = client.submit(perform_block, task, block, pure=False)
        running[future] = block
        done.add(future)

    def fill() -> None:
        while len(running) < cluster_threads(client) and (block := next_block()) is not None:
            submit(block)

    try:
        fill()
        for future in done:
            block = running.pop(future)
            if future.status == "finished":
                try:
                    records = future.result()
                except CancelledError:  # the worker died before it sent its results
                    submit(block)
                    continue
            else:
                error = f"its worker on the cluster died: {future.exception()}"
                records = [_record(task, trial, error=error) for trial in block]
            yield from map(Outcome, block, records)
            fill()
    finally:
        client.cancel(list(running))


def cluster_threads(client: Client) -> int:
    """How many trials a cluster runs at a time; one, while it has no worker."""
    return max(1, sum(cast("dict[str, int]", client.nthreads()).values()))


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start(task: Task, threads: int) -> tuple[SpawnProcess, Connection]:
    context = get_context("spawn")  # a forked process could not use CUDA, and would inherit locked locks
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, task), daemon=True)
    with _threads_in_environment(threads):
        process.start()
    theirs.close()  # closed here, so that reading ends when the worker dies
    return process, ours


def _work(pipe: Connection, task: Task) -> None:
    """A worker's life: trials in, records out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent, which ends its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            block = pipe.recv()
        except EOFError:
            return
        pipe.send(perform_block(task, block))


def _end_with_parent() -> None:
    """A parent that is killed takes its workers with it, in the middle of a trial too."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _threads_in_environment(threads: int) -> Iterator[None]:
    """A new process reads its number of threads before any of our code runs in it; a smaller one set outside stays."""
    before = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    for name, value in before.items():
        outside = int(value) if value and value.isdigit() else threads
        os.environ[name] = str(min(threads, max(1, outside)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _how_it_ended(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
