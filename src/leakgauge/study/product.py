"""Which trials a plan has: the product of its lists, what `only` keeps of it, and the controls beside it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from leakgauge.errors import require
from leakgauge.study.dealt import CONTROLS


@dataclass(frozen=True)
class Rule:
    """Keeps the combinations that fit every set given: indices into the plan's lists, `None` for all of a list.

    Attributes:
        batches: how many of the first batches; `None` for all.
    """

    models: frozenset[int] | None = None
    clients: frozenset[int] | None = None
    defenses: frozenset[int] | None = None
    attacks: frozenset[int] | None = None
    batches: int | None = None

    def fits(self, chosen: tuple[int, ...]) -> bool:
        """Whether (model, client, defence, attack) is kept."""
        asked = (self.models, self.clients, self.defenses, self.attacks)
        return all(some is None or one in some for some, one in zip(asked, chosen, strict=True))


@dataclass(frozen=True)
class Key:
    """Which trial: indices into the plan's lists. `control` marks one added to show that an attack has power: it has no
    defence, and its batch counts the control's clients."""

    model: int
    client: int
    defense: int
    attack: int
    seed: int
    batch: int
    control: bool = False


def product(
    sizes: tuple[int, ...], rules: Sequence[Rule] | None, seeds: int, batches: int, plain: Set[int]
) -> list[Key]:
    """All trials, those first that are asked for.

    Args:
        sizes: numbers of models, clients, defences and attacks.
        plain: defences that are none, of simulated clients.

    Raises:
        InputError: the rules keep none.
    """

    def count(chosen: tuple[int, ...]) -> int:
        """How many batches of a combination are kept."""
        if rules is None:
            return batches
        return min(max([rule.batches or batches for rule in rules if rule.fits(chosen)], default=0), batches)

    kept = {chosen: n for chosen in itertools.product(*map(range, sizes)) if (n := count(chosen))}
    require(bool(kept), "only", "keeps no trial", "loosen it")
    keys = [Key(m, c, d, a, s, b) for (m, c, d, a), n in kept.items() for s in range(seeds) for b in range(n)]
    # Trials that share a broadcast, or a batch and what it is compared with, stand together: they are kept.
    keys.sort(key=lambda key: (key.model, key.seed, key.batch))
    return keys + _controls(kept, plain)


def _controls(kept: Mapping[tuple[int, ...], int], plain: Set[int]) -> list[Key]:
    """`CONTROLS` undefended clients with public examples for each model, client and attack that meet a defence or an
    update file; none where the plan itself has as many without a defence, or nothing but such."""
    shown = {(m, c, a) for (m, c, d, a), count in kept.items() if d in plain and count >= CONTROLS}
    lacking = sorted({(m, c, a) for m, c, d, a in kept if d not in plain} - shown)
    return [Key(m, c, -1, a, 0, b, control=True) for m, c, a in lacking for b in range(CONTROLS)]
