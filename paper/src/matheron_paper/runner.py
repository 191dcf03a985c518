"""run: an experiment from its trials to its table and figures.

It can be stopped at any moment, and resumes from there.
"""

from __future__ import annotations

import platform
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch
from rich import progress as bars
from rich.console import Console

import matheron

from .base import Case, Experiment, RefusedError, Settings, Trial, canonical
from .report import Cell, Report
from .results import Results
from .workers import NextBlock, Outcome, Task, cluster_threads, in_processes, in_this_process, on_cluster, usable_cores

if TYPE_CHECKING:
    from distributed import Client

# The default number of workers is the number of cores, up to this.
MOST_WORKERS = 8
# The longest wait for an answer from a Dask scheduler.
PATIENCE = "5s"
# Seconds between lines of progress if the output is not a terminal.
_LINE_EVERY = 10.0


@dataclass(frozen=True)
class Summary:
    """How a run ended."""

    finished: int
    failed: int
    left: int
    files: list[Path]
    report: Report | None


def run(
    experiment: Experiment,
    scale: str = "quick",
    *,
    out: Path | str = "results",
    seed: int = 0,
    workers: int | None = None,
    device: str = "cpu",
    trials: int | None = None,
    time_limit: float | None = None,
    dask: str | None = None,
    only: Case | None = None,
    console: Console | None = None,
) -> Summary:
    """Run what is left of an experiment, and report on all that is there.

    Args:
        scale: which of the experiment's settings.
        out: the folder of the results, the table and the figures.
        seed: runs with different seeds are independent.
        workers: how many processes; 1 is this one.
        device: "cpu" or "cuda".
        trials: how many per case; None is the scale's own number. More can be added later.
        time_limit: in seconds. No trial is started that would, by what its like have taken, end later.
        dask: the address of a Dask scheduler, whose workers then run the trials.
        only: run the trials of cases with these entries alone, such as {"d": 8}; the report is on all that is there.
    """
    settings = experiment.settings(scale)
    began = time.monotonic()
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise RefusedError(f"device: {device!r} was asked for, but torch sees no CUDA device; use --device cpu")
    count = settings["trials"] if trials is None else trials
    if count < 1 or (workers is not None and workers < 1):
        raise RefusedError(f"expected at least one trial and one worker, got {count} and {workers}")
    if dask is not None and workers is not None:
        raise RefusedError("workers: the Dask cluster has its own; give either --dask or --workers")
    console = Console() if console is None else console
    stem = Path(out) / "-".join([experiment.name, scale, *([f"seed{seed}"] if seed else [])])
    file, header = stem.with_name(stem.name + ".jsonl"), experiment.header(scale, seed)
    made_with = {"matheron": matheron.__version__, "torch": torch.__version__, "python": platform.python_version()}
    with _cluster(dask) as client, Results(file, header, made_with, experiment.unchanged) as results:
        results.check_fields()
        wanted = _only(experiment.trials(settings, seed, count), only or {})
        done = results.done
        open_ = [trial for trial in wanted if trial.key not in done]
        usual = 1 if device.startswith("cuda") else min(MOST_WORKERS, usable_cores())
        most = cluster_threads(client) if client is not None else workers or usual
        workers = min(most, max(1, len(open_)))
        console.print(_first_line(experiment, scale, len(wanted), len(open_), workers), highlight=False)
        if open_:
            task = Task(experiment, settings, device)
            _run_open(task, open_, results, workers, console, began, time_limit, client)
        records = sorted((results.records[key] for key in results.done), key=lambda r: (r["trial"], r["key"]))
        failed = [(t, results.records[t.key]["error"]) for t in wanted if "error" in results.records.get(t.key, {})]
        left = len([t for t in wanted if t.key not in results.records])
    for trial, error in failed:
        console.print(f"failed: {trial}: {error}", highlight=False, style="red", markup=False)
    report, files = _report(experiment, records, settings, stem, console) if records else (None, [])
    if failed:
        console.print(f"{len(failed)} trials failed; the same command tries them again", highlight=False)
    if left:
        console.print(f"{left} trials left; the same command resumes with them", highlight=False)
    return Summary(len(wanted) - len(failed) - left, len(failed), left, [results.path, *files], report)


def _only(trials: list[Trial], entries: Case) -> list[Trial]:
    """The trials whose case has these entries, given as values or as text."""
    chosen = [t for t in trials if all(k in t.case and str(t.case[k]) == str(v) for k, v in entries.items())]
    if not chosen:
        cases = "; ".join(dict.fromkeys(", ".join(f"{k}={v}" for k, v in t.case.items()) for t in trials))
        raise RefusedError(f"only: no case has {', '.join(f'{k}={v}' for k, v in entries.items())}; there are {cases}")
    return chosen


def _run_open(
    task: Task,
    open_: list[Trial],
    results: Results,
    workers: int,
    console: Console,
    began: float,
    time_limit: float | None,
    client: Client | None = None,
) -> None:
    """Run the trials, and store each as it ends."""
    costs = Costs()
    together = _together(task)
    # the time of a trial that ran alone says nothing about trials that run together
    for record in results.records.values():
        shared = together(record["case"]) > 1
        if "error" not in record and record["device"] == task.device and ("together" in record) == shared:
            costs.add(record["case"], record["seconds"])
    waiting = iter(_blocks(open_, together))
    unfinished = {trial.key: trial for trial in open_}

    def next_block() -> list[Trial] | None:
        block = next(waiting, None)
        if block is None or time_limit is None:
            return block
        fits = time.monotonic() - began + len(block) * costs.longest(block[0]) <= time_limit
        return block if fits else None

    # Closing the generator ends the workers, however the loop ends.
    with (
        Progress(console, task.experiment.name, len(open_)) as progress,
        closing(_outcomes(task, next_block, workers, client, progress)) as outcomes,
    ):
        for outcome in outcomes:
            if outcome.died:
                progress.note(f"{outcome.trial}: its worker process {outcome.died}; it is run once more")
                continue
            results.append(outcome.trial.key, outcome.record)
            del unfinished[outcome.trial.key]
            if "error" not in outcome.record:
                costs.add(outcome.trial.case, outcome.record["seconds"])
            progress.advance(sum(map(costs.mean, unfinished.values())) / workers)
        if unfinished:
            progress.note(f"stopped before the time limit of {duration(time_limit or 0)}")


@contextmanager
def _cluster(address: str | None) -> Iterator[Client | None]:
    """A Client of the cluster; None where none was asked for."""
    if address is None:
        yield None
        return
    if ":" not in address:
        raise RefusedError(f"dask: expected a scheduler's address such as tcp://10.0.0.1:8786, got {address!r}")
    try:
        from distributed import Client
    except ImportError:
        raise RefusedError("dask: Dask's distributed scheduler is needed; pip install 'dask[distributed]'") from None
    try:
        client = Client(address, timeout=PATIENCE, set_as_default=False)
    except OSError:
        raise RefusedError(f"dask: no scheduler answers at {address}; start one with `dask scheduler`") from None
    except ValueError as error:  # the address is invalid
        raise RefusedError(f"dask: {error}") from None
    with closing(client):
        yield client


def _outcomes(
    task: Task, next_block: NextBlock, workers: int, client: Client | None, progress: Progress
) -> Generator[Outcome, None, None]:
    if client is not None:
        return on_cluster(task, next_block, client)
    if workers > 1:
        return in_processes(task, next_block, workers)
    return in_this_process(task, next_block, progress.part)


def _together(task: Task) -> Callable[[Case], int]:
    """How many trials of a case are run together: on a GPU as many as the experiment can, on a CPU one."""
    several = task.experiment.together
    return several if several is not None and task.device.startswith("cuda") else lambda case: 1


def _blocks(trials: list[Trial], size: Callable[[Case], int]) -> list[list[Trial]]:
    """Trials in blocks of one case, in the order of their first ones."""
    by_case: dict[str, list[list[Trial]]] = {}
    blocks: list[list[Trial]] = []
    for trial in trials:
        mine = by_case.setdefault(canonical(dict(trial.case)), [])
        if not mine or len(mine[-1]) == size(trial.case):
            mine.append([])
            blocks.append(mine[-1])
        mine[-1].append(trial)
    return blocks


def _report(
    experiment: Experiment, records: list[Cell], settings: Settings, stem: Path, console: Console
) -> tuple[Report, list[Path]]:
    """Write and print what the results say."""
    try:
        report = experiment.report(records, settings)
    except (LookupError, TypeError, AttributeError) as error:
        raise RefusedError(
            f"{stem}.jsonl: its trials do not hold what {experiment.name} reports on ({error!r}); use another --out"
        ) from error
    try:
        files = report.save(stem)
    except ImportError as error:
        files = report.table.save(stem)
        console.print(f"no figures: {error}. The same command makes them where matplotlib is installed", markup=False)
    report.table.print(console)
    for remark in report.remarks:
        console.print(remark, highlight=False, markup=False)
    console.print("written: " + ", ".join(map(str, files)), highlight=False, soft_wrap=True, markup=False)
    return report, files


def _first_line(experiment: Experiment, scale: str, wanted: int, open_: int, workers: int) -> str:
    line = f"{experiment.name}, {scale} scale: {wanted} trials"
    if open_ < wanted:
        line += f", {wanted - open_} of them done before"
    return line + (f"; {workers} processes" if open_ and workers > 1 else "")


class Costs:
    """What trials have cost so far, in seconds: by case where it is known, else over all."""

    def __init__(self) -> None:
        self._by_case: dict[str, list[float]] = defaultdict(list)

    def add(self, case: Case, seconds: float) -> None:
        self._by_case[canonical(dict(case))].append(seconds)

    def _known(self, trial: Trial) -> list[float]:
        return self._by_case.get(canonical(dict(trial.case))) or [s for known in self._by_case.values() for s in known]

    def mean(self, trial: Trial) -> float:
        known = self._known(trial)
        return sum(known) / len(known) if known else 0.0

    def longest(self, trial: Trial) -> float:
        return max(self._known(trial), default=0.0)


class Progress:
    """Counts finished trials; `left` is the estimate of the seconds that remain."""

    def __init__(self, console: Console, label: str, total: int) -> None:
        self.console, self.label, self.total, self.finished = console, label, total, 0
        self._last_line = time.monotonic()
        columns = [bars.TextColumn("{task.description}"), bars.BarColumn(), bars.MofNCompleteColumn()]
        columns += [bars.TimeElapsedColumn(), bars.TextColumn("{task.fields[left]}")]
        self._bar = bars.Progress(*columns, console=console, disable=not console.is_terminal)
        self._task = self._bar.add_task(label, total=total, left="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def advance(self, left: float) -> None:
        self.finished += 1
        words = f"about {duration(left)} left" if self.finished < self.total else ""
        self._bar.update(self._task, completed=self.finished, left=words)
        due = self.finished == self.total or time.monotonic() - self._last_line >= _LINE_EVERY
        if due and not self.console.is_terminal:
            self._last_line = time.monotonic()
            line = f"{self.label}: {self.finished} of {self.total} trials" + (f", {words}" if words else "")
            self.console.print(line, highlight=False)

    def part(self, of: float) -> None:
        """That much of the next trials is done, in trials."""
        self._bar.update(self._task, completed=self.finished + of)

    def note(self, text: str) -> None:
        """A line of its own, above the bar."""
        self.console.print(text, highlight=False, style="yellow", markup=False)


def duration(seconds: float) -> str:
    """Seconds in words: 40 s, 3 min, 2 h 10 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
