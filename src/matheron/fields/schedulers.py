"""Schedulers that compute blocks: in this thread, in several threads, or on a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Union, cast

import torch

from .extras import need

if TYPE_CHECKING:
    from dask.delayed import Delayed
    from distributed import Client, Future

# None, "sync" (one block after another, each on all cores), "threads", the address of a scheduler, or a Client.
Scheduler = Union[str, "Client", None]
# The longest wait for an answer from a scheduler.
PATIENCE = "5s"


@contextmanager
def client_of(scheduler: Scheduler) -> Iterator[Client | None]:
    """A `distributed.Client` for an address or a Client; None for a local scheduler.

    With None, the current Client of this process is used if there is one, as elsewhere in Dask.
    """
    if scheduler in ("sync", "threads"):
        yield None
    elif scheduler is None:
        try:
            client = need("distributed").get_client()
        except (ImportError, ValueError):
            client = None
        yield client
    elif isinstance(scheduler, str):
        if ":" not in scheduler:
            raise ValueError(
                f"scheduler: expected 'sync', 'threads' or a Dask scheduler's address such as tcp://10.0.0.1:8786, "
                f"got {scheduler!r}"
            )
        distributed = need("distributed")
        try:
            client = distributed.Client(scheduler, timeout=PATIENCE, set_as_default=False)
        except OSError:
            raise OSError(f"no Dask scheduler answers at {scheduler}; start one with `dask scheduler`") from None
        with closing(client):
            yield client
    elif not hasattr(scheduler, "scheduler_info"):
        raise TypeError(f"scheduler: expected a name, an address or a Client, got {type(scheduler).__name__}")
    else:
        yield scheduler


def finished(tasks: Sequence[Delayed], client: Client | None, scheduler: Scheduler) -> Iterator[None]:
    """Yield results of Dask's delayed tasks in the order in which they finish. On a cluster all are one graph."""
    if client is not None:
        futures = cast("list[Future]", client.compute(list(tasks), retries=2))
        try:
            for future in need("distributed").as_completed(futures, loop=client.loop):
                yield future.result()
                future.release()
        finally:
            client.cancel([future for future in futures if not future.done()])
    elif scheduler == "sync":
        for task in tasks:
            yield task.compute(scheduler="sync")
    else:
        yield from _in_threads(tasks)


def _in_threads(tasks: Sequence[Delayed]) -> Iterator[None]:
    """Compute blocks in parallel, each on one thread; their number is that of torch's threads."""
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            for future in as_completed([pool.submit(task.compute, scheduler="sync") for task in tasks]):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(threads)
