"""Trials that belong together. The unit is the client; seeds repeat it."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from leakgauge.study.judging.records import OtherClients, Scenario, Trial


@dataclass(frozen=True)
class TrialGroup:
    """All trials of one scenario and attack, controls among them only in groups of their own."""

    scenario: Scenario
    attack: str
    control: bool
    trials: tuple[Trial, ...]

    @property
    def thing(self) -> str:
        """What an example of the data is called: image, or example where the data are none."""
        return self.scenario.data.kind

    @property
    def title(self) -> str:
        """Attack and setting in words."""
        return f"{self.attack} on {self.scenario.words}"

    @cached_property
    def failed(self) -> list[Trial]:
        """Trials without a result. Where the attack applies to none, there are none; where it says of some clients that
        it does not apply to them, it was not tried on those, and nothing is known of them."""
        applies = any(t.applies for t in self.trials)
        return [t for t in self.trials if t.scores is None and applies]

    @property
    def rounds(self) -> str:
        """What several captured rounds are together, and which gave most; empty for one, and for simulated clients."""
        names = sorted({t.scenario.data.round for t in self.trials} - {""})
        if not names:
            return ""
        clients = len({t.client for t in self.trials})
        said = f"{len(names)} rounds of {clients} client{'s' * (clients != 1)}, each {self.thing} counted once"
        best = max(self.scored, key=_gave, default=None)
        if best is not None:
            seen, most = _gave(best)[2:]
            said += f"; {best.scenario.data.round} gave most ({seen} identified, highest PSNR {most:.1f} dB)"
        return f"{said}; rounds were attacked one by one, and together they may say more"

    @property
    def doubt(self) -> str:
        """Why results on a captured update mean nothing: the plan does not explain it. Empty where it does."""
        told = (t.explained for t in self.trials if t.explained is not None)
        return next((e.sentence for e in told if not e.holds), "")

    @cached_property
    def scored(self) -> list[Trial]:
        """Trials that gave a result."""
        return [t for t in self.trials if t.scores is not None]

    @property
    def others(self) -> list[OtherClients]:
        """The reads held against other clients, as far as there were such."""
        return [t.controls.other_client for t in self.scored if t.controls.other_client is not None]

    @property
    def compared(self) -> bool:
        """Whether every read was held against other clients, which says what chance gives."""
        return len(self.others) == len(self.scored)

    @cached_property
    def highest_psnr(self) -> dict[int, list[float]]:
        """Client → the highest PSNR of each of its images over the seeds."""
        return {client: [max(v) for v in images] for client, images in self._per_image("psnr").items()}

    @cached_property
    def mean_psnr(self) -> dict[int, list[float]]:
        """Client → the mean PSNR of each of its images over the seeds."""
        return {client: [statistics.fmean(v) for v in images] for client, images in self._per_image("psnr").items()}

    @cached_property
    def identified(self) -> dict[int, list[bool]]:
        """Client → which of its images were identified in some seed."""
        return {client: [any(v) for v in images] for client, images in self._per_image("identified").items()}

    @cached_property
    def recovered(self) -> dict[int, list[bool]]:
        """Client → which of its images were recovered in some seed. A client whose trials all failed has none."""
        found = {client: [any(v) for v in images] for client, images in self._per_image("recovered").items()}
        size = self.scenario.data.batch
        return {t.client: [False] * size for t in self.trials} | found

    @property
    def certified(self) -> int:
        """Reads that the attack proved by its own check."""
        return sum(t.scores.certified for t in self.scored if t.scores is not None)

    def values(self, score: str) -> list[float]:
        """One number an image: the mean over the seeds of a score."""
        return [statistics.fmean(v) for images in self._per_image(score).values() for v in images]

    def _per_image(self, score: str) -> dict[int, list[list[Any]]]:
        """Client → for each of its images with a score, that score in every seed."""
        found: dict[tuple[int, int], list[Any]] = defaultdict(list)
        for trial in self.scored:
            same = trial.scenario.data.examples
            for slot, value in enumerate(getattr(trial.scores, score) or ()):
                if value is not None:
                    found[(trial.client, same[slot] if same else slot)].append(value)
        clients: dict[int, list[list[Any]]] = defaultdict(list)
        for (client, _), values in found.items():
            clients[client].append(values)
        return dict(clients)


def _gave(trial: Trial) -> tuple[int, int, int, float]:
    """How much came back: certified, recovered, identified, highest PSNR."""
    s = trial.scores
    assert s is not None
    return s.certified, sum(s.recovered), sum(s.identified), max((p for p in s.psnr if p is not None), default=0.0)


def shares(flags: dict[int, list[bool]]) -> list[float]:
    """Share of each client's images."""
    return [statistics.fmean(client) for client in flags.values()]


def groups_of(trials: Sequence[Trial]) -> list[TrialGroup]:
    """Trials by scenario and attack, in the order of their ids."""
    found: dict[tuple[bool, Scenario, str], list[Trial]] = defaultdict(list)
    for trial in trials:
        found[(trial.control, trial.scenario.of_all_clients, trial.attack)].append(trial)
    return [TrialGroup(s, attack, control, tuple(members)) for (control, s, attack), members in found.items()]


def control_of(group: TrialGroup, groups: Sequence[TrialGroup]) -> TrialGroup | None:
    """The same attack on the same kind of client without a defence: added controls, or the plan's own."""
    s = group.scenario

    def alike(g: TrialGroup) -> bool:
        t = g.scenario
        same = (s.model, s.server, s.client, s.data.batch) == (t.model, t.server, t.client, t.data.batch)
        return same and g.attack == group.attack and not t.defended

    # An added control first: where an update file was audited, its own trial is no control.
    return min((g for g in groups if alike(g)), key=lambda g: not g.control, default=None)
