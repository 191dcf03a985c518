"""Experiment and Trial: what is run, and where each trial's random numbers come from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module

import torch

from .report import Cell, Report, Row, Rows

# Which module holds each experiment's EXPERIMENT. A module is imported when its experiment is asked for.
MODULES = {
    "posteriors": "matheron_paper.posteriors",
    "overview": "matheron_paper.overview",
    "wasserstein": "matheron_paper.wasserstein",
    "wasserstein-love": "matheron_paper.love",
    "bounds": "matheron_paper.bounds",
    "decompositions": "matheron_paper.decompositions",
    "leverage": "matheron_paper.leverage",
    "thompson": "matheron_paper.thompson",
    "fitzhugh-nagumo": "matheron_paper.fitzhugh_nagumo",
}


class RefusedError(ValueError):
    """What was asked for cannot be done; the message says why, and what to do."""


Settings = Mapping[str, Cell]  # numbers, strings and lists of these, as JSON has them
Case = Mapping[str, Cell]  # one combination of the varied settings, such as {"d": 2, "n": 64}


@dataclass(frozen=True)
class Trial:
    """One repetition of one case. Its random numbers depend on what it is, not on when or where it is run."""

    experiment: str
    case: Case
    number: int
    seed: int

    @property
    def key(self) -> str:
        """What tells this trial from the others of a run."""
        return canonical([dict(self.case), self.number])

    def generator(
        self, *purpose: str, shared: Sequence[str] | None = None, device: torch.device | str = "cpu"
    ) -> torch.Generator:
        """A generator for one purpose.

        Trials of different cases differ. With `shared`, only those entries of the case count: cases that agree there
        see the same numbers, so that methods can be compared on the same problem.
        """
        case = {k: v for k, v in self.case.items() if shared is None or k in shared}
        return torch.Generator(device).manual_seed(stable_hash(self.experiment, case, self.number, self.seed, *purpose))

    def __str__(self) -> str:
        return f"{' '.join(f'{k}={v}' for k, v in self.case.items())} trial {self.number}".strip()


Together = Callable[[Sequence[Trial], Settings, torch.device, Callable[[float], None] | None], list[Row]]


@dataclass(frozen=True)
class Experiment:
    """A figure: settings for each scale, the cases they make, how one trial is run, and the report on all.

    Args:
        name: as `matheron reproduce` takes it.
        about: what it shows, in its first line: a module's docstring will do.
        scales: settings by name ("quick", "paper", "tiny" for tests); each has "trials", how many a case gets.
        cases: settings -> the cases.
        run: (trial, settings, device) -> the trial's result: a dict of what JSON holds.
        report: (records, settings) -> a table and figures. A record has "case", "trial" and "result".
        version: raised when `run` changes its meaning, so that old results do not mix with new ones.
        features: the kind of features that each method draws with, named here so that the library's defaults may
            change and published figures do not; part of the header, so that a resumed run does not mix two kinds.
        run_together: (trials of one case, settings, device, advance) -> their results, as `run` has them one by one;
            `advance` is called with the share that is done. None where a GPU runs trials one by one, too.
        together: case -> how many of its trials a GPU runs together, at the most; they are stored when all have ended.
            Given with `run_together`.
        unchanged: (older version, case) -> whether trials of that case still mean what they meant in that version;
            None where trials of an older version count no more.
    """

    name: str
    about: str | None
    scales: Mapping[str, Settings]
    cases: Callable[[Settings], Sequence[Case]]
    run: Callable[[Trial, Settings, torch.device], Row]
    report: Callable[[Rows, Settings], Report]
    version: int = field(default=1, kw_only=True)
    features: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    run_together: Together | None = field(default=None, kw_only=True)
    together: Callable[[Case], int] | None = field(default=None, kw_only=True)
    unchanged: Callable[[int, Case], bool] | None = field(default=None, kw_only=True)

    @property
    def title(self) -> str:
        """As `matheron reproduce --list` shows it."""
        return (self.about or self.name).splitlines()[0]

    def settings(self, scale: str) -> Settings:
        if scale not in self.scales:
            raise RefusedError(f"scale: expected one of {', '.join(self.scales)} for {self.name}, got {scale!r}")
        return self.scales[scale]

    def trials(self, settings: Settings, seed: int, count: int) -> list[Trial]:
        """`count` trials of every case, a round of all cases at a time: a run that is stopped covers all cases."""
        cases = self.cases(settings)
        return [Trial(self.name, case, number, seed) for number in range(count) for case in cases]

    def header(self, scale: str, seed: int) -> Row:
        """What makes two runs the same run. The number of trials does not: more may be added."""
        settings = {k: v for k, v in self.settings(scale).items() if k != "trials"}
        return {
            "experiment": self.name,
            "version": self.version,
            "scale": scale,
            "seed": seed,
            "settings": json.loads(canonical(settings)),
            "features": dict(self.features),
        }


def scales(**settings: tuple[Cell, Cell, Cell]) -> dict[str, Settings]:
    """Settings by scale, from each one's values at the scales "paper", "quick" and "tiny"."""
    return {scale: {k: v[i] for k, v in settings.items()} for i, scale in enumerate(("paper", "quick", "tiny"))}


def names() -> list[str]:
    return list(MODULES)


def experiment(name: str) -> Experiment:
    if name not in MODULES:
        raise RefusedError(f"experiment: expected one of {', '.join(MODULES)}, got {name!r}")
    try:
        return import_module(MODULES[name]).EXPERIMENT
    except ImportError as error:
        raise RefusedError(f"{name}: {error}") from error


def canonical(value: Cell) -> str:
    """JSON that is the same for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def stable_hash(*parts: Cell) -> int:
    """63 bits that are the same in every process and on every machine, as Python's own hash is not."""
    return int.from_bytes(hashlib.sha256(canonical(parts).encode()).digest()[:8]) >> 1
