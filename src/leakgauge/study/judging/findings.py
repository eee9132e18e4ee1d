"""What the trials of one scenario and attack say together."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median

import numpy as np
from scipy.stats import binomtest

from leakgauge.intervals import bounded_interval, bounded_lower, bounded_upper, mean_interval, proportion_interval
from leakgauge.observation import Cost
from leakgauge.study.deal import CONTROLS
from leakgauge.study.judging import results
from leakgauge.study.judging.records import Trial
from leakgauge.study.judging.results import Finding, Level, Of, TrialGroup, control_of, shares

POWER, POWER_SURE = 0.1, 0.985
"""An attack has shown its power where it is sure, one-sided, to recover more than this share."""
SINGLED_OUT = 0.5  # residual risk above which a row is exposed, whatever its images look like
BY_CHANCE = 0.025  # chance that clients who have nothing to do with the updates are identified as often

NOT_SAFE = "that says what was tried, not that it is safe"


def by_client(trials: Iterable[Trial], value: Callable[[Trial], Of | None]) -> list[list[Of]]:
    """Of each client that has any, what its trials have."""
    found = defaultdict[int, list[Of]](list)
    for trial in trials:
        if (one := value(trial)) is not None:
            found[trial.client].append(one)
    return list(found.values())


def power_of(group: TrialGroup, groups: Sequence[TrialGroup]) -> results.Power:
    """Whether the attack works at all: with `POWER_SURE` confidence it recovers more than `POWER` of a client's images,
    on five clients or more. Three of five that come back whole say so; one that recovers a tenth passes in at most
    1.5 % of audits."""
    control = control_of(group, groups)
    if control is None:
        return results.Power()
    found, highest = shares(control.recovered), max(control.values("psnr", max), default=None)
    return results.Power(
        psnr=None if highest is None else round(highest, 3),
        shown=len(found) >= CONTROLS and bounded_lower(found, POWER_SURE) > POWER,
        trial=control.trials[0].id,
        clients=len(found),
        recovered=round(fmean(found), 4),
    )


def without_power(power: results.Power) -> str:
    """Why an attack's failure says nothing, where it has not shown its power."""
    if power.shown is None:
        return "no control shows whether the attack has power on this kind of client"
    if (share := power.recovered or 0.0) > POWER:
        return (
            f"the attack recovers {100 * share:.0f} % of {power.clients} undefended controls, too few to show its power"
        )
    return "the attack does not recover the undefended controls either, so its failure says nothing"


def level_of(
    group: TrialGroup, power: results.Power, identified: results.Identified | None, risk: results.Residual | None
) -> Level:
    """`EXPOSED`: some image recovered, a read that its attack certified, or more than half of the images singled out
    beyond what strangers' are (look-alikes differ by too little to "come back"), or images identified beyond chance by
    inputs of a layer that were proved. `PARTIAL`: identified beyond chance.
    `NOT_RECOVERED`: neither, by an attack that has shown its power, on five clients or more, with strangers to compare
    with and updates that their plan explains (a flag takes that back). Else `INCONCLUSIVE`."""
    if not any(t.applies for t in group.trials):
        return Level.NOT_APPLICABLE
    if identified is None:
        return Level.INCONCLUSIVE
    back = group.certified or any(any(client) for client in group.recovered.values())
    if back or (risk is not None and risk.low > SINGLED_OUT):
        return Level.EXPOSED
    if identified.beyond <= BY_CHANCE:
        return Level.EXPOSED if identified.layer else Level.PARTIAL
    enough = bounded_upper([0.0] * identified.clients) < 0.5
    sure = enough and power.shown and group.compared and not group.failed and not group.doubt
    return Level.NOT_RECOVERED if sure else Level.INCONCLUSIVE


def identified_of(group: TrialGroup) -> results.Identified | None:
    """`None` where no trial gave a result."""
    found = group.identified
    if not found:
        return None
    each = shares(found)
    count, n = sum(map(sum, found.values())), sum(map(len, found.values()))
    hits, tried = by_strangers(group)
    smallest = min(s.gallery for s in group.scores)
    by_mean = sum(t.controls.mean_image.identified for t in group.scored)
    return results.Identified(
        count=count,
        n=n,
        rate=round(count / n, 4),
        clients=len(found),
        **bounded_interval(each).rounded(3),
        upper=round(bounded_upper(each), 4),
        chance=round(max(hits / tried if tried else 0.0, 1 / (1 + smallest)), 4),
        beyond=round(beyond_chance(group), 4),
        naive=round(by_mean / sum(len(s.rank) for s in group.scores), 4),
        gallery=smallest,
        whole=min(s.whole for s in group.scores),
        worst=max(map(sum, found.values())),
        layer=next((s.layer for s in group.scores if s.layer), ""),
    )


def by_strangers(group: TrialGroup) -> tuple[int, int]:
    """How many examples of other clients the same reads identified, and of how many."""
    others = group.others
    return sum(sum(o.identified) for o in others), group.scenario.data.batch * sum(len(o.identified) for o in others)


def beyond_chance(group: TrialGroup) -> float:
    """Probability that clients put in place of these would be identified as often, were the reads of nobody.

    Each client's count, summed over its seeds, is one among those of the other clients that the same reads were held
    against: if the reads know nothing, any of them may be its own. The sum over clients is compared with all such
    choices. Seeds, batch and assignment are in every count alike.
    """
    law, own = np.ones(1), 0
    for trials in by_client(group.scored, lambda t: t):
        mine = sum(sum(t.scores.identified) for t in trials if t.scores is not None)
        others = [t.controls.other_client for t in trials if t.controls.other_client is not None]
        counts = [mine, *(sum(c) for c in zip(*(o.identified for o in others), strict=False))]
        own += mine
        law = np.convolve(law, np.bincount(counts) / len(counts))
    return min(1.0, float(law[own:].sum()))


def residual_of(group: TrialGroup, identified: results.Identified) -> results.Residual:
    """results.Residual risk, the interval by the two ends of attack and control."""
    hits, strangers = by_strangers(group)
    control, ends = hits / strangers if strangers else 0.0, proportion_interval(hits, strangers)

    def risk(attack: float, by_chance: float) -> float:
        return (attack - by_chance) / max(1 - by_chance, 1e-9)

    attack = identified.count / identified.n
    found = risk(attack, control)
    below = math.hypot(found - risk(identified.low, control), found - risk(attack, ends.high or 0.0))
    above = math.hypot(risk(identified.high, control) - found, risk(attack, ends.low or 0.0) - found)
    return results.Residual(round(found, 4), round(max(-1.0, found - below), 4), round(min(1.0, found + above), 4))


def gain_of(group: TrialGroup) -> results.PSNRGain | None:
    """What the update brought over the attack's own prior: the same reads against other clients' images."""

    def gain(trial: Trial) -> float | None:
        other = trial.controls.other_client
        psnr = [] if trial.scores is None else [v for v in trial.scores.psnr if v is not None]
        return fmean(psnr) - fmean(other.psnr) if other is not None and other.psnr and psnr else None

    gains = [fmean(v) for v in by_client(group.scored, gain)]
    return results.PSNRGain(round(fmean(gains), 3), **mean_interval(gains).rounded(3)) if gains else None


def labels_of(group: TrialGroup, groups: Sequence[TrialGroup] = ()) -> results.LabelLeak | None:
    """`None` where labels were given, or none were read."""
    read = by_client(group.trials, lambda t: None if t.labels is None or t.labels.known else t.labels)
    if not read:
        return None
    f1 = [fmean(one.true_counts_f1 for one in labels) for labels in read]
    constant = [fmean(one.constant_f1 for one in labels) for labels in read]
    sure = [one.confidence for labels in read for one in labels if one.confidence is not None]
    above = [a - b for a, b in zip(f1, constant, strict=True)]
    wins, unequal = sum(a > 0 for a in above), sum(a != 0 for a in above)  # a sign test; ties count for neither
    beats = unequal > 0 and float(binomtest(wins, unequal, alternative="greater").pvalue) <= 0.05
    control = control_of(group, groups)
    gap = bounded_interval(above, low=-max(constant), high=1 - min(constant)).rounded(3)
    return results.LabelLeak(
        mean=round(fmean(f1), 4),
        **bounded_interval(f1).rounded(3),
        upper=round(bounded_upper(f1), 4),
        baseline=round(fmean(constant), 4),
        above=round(fmean(above), 4),
        above_low=gap["low"],
        above_high=gap["high"],
        confidence=_mean(sure),
        n=len(f1),
        right=sum(value == 1 for value in f1),
        better=beats and fmean(above) >= (1 - fmean(constant)) / 2,
        shown=_reads_labels(group if control is None else control),
    )


def _reads_labels(control: TrialGroup) -> bool | None:
    """Whether undefended clients' labels are read beyond the best constant guess, or all of them; `None` without."""
    read = by_client(control.trials, lambda t: t.labels)
    if not read or control.scenario.defended:
        return None
    above = mean_interval([fmean(one.true_counts_f1 - one.constant_f1 for one in labels) for labels in read])
    return all(one.true_counts_f1 == 1 for labels in read for one in labels) or (above.low or 0.0) > 0


def tokens_of(group: TrialGroup) -> results.TokenLeak | None:
    """`None` where no tokens were read."""
    read = by_client(group.scored, lambda t: t.tokens)
    if not read:
        return None

    def mean(score: str) -> float:
        return round(fmean(fmean(getattr(one, score) for one in client) for client in read), 4)

    return results.TokenLeak(
        mean=mean("f1"),
        **bounded_interval([fmean(one.f1 for one in client) for client in read]).rounded(3),
        precision=mean("precision"),
        recall=mean("recall"),
        baseline=mean("constant_f1"),
        sets=mean("exact_set"),
        counts=mean("exact_counts"),
        order=round(fmean(fmean(one.in_place == 1 for one in client) for client in read), 4),
        n=len(read),
    )


def finding(group: TrialGroup, groups: Sequence[TrialGroup]) -> Finding:
    """The numbers and the level; sentence and flags are added by the verdict."""
    power, identified = power_of(group, groups), identified_of(group)
    risk = None if identified is None else residual_of(group, identified)
    images, means = group.values("psnr"), [fmean(client) for client in group.images("psnr", fmean).values()]
    bars = [bar for t in group.scored for bar in t.controls.nearest_public.psnr]
    costs = [t.cost for t in group.trials]
    return Finding(
        scenario=group.scenario,
        attack=group.attack,
        control=group.control,
        level=level_of(group, power, identified, risk),
        trials=len(group.trials),
        failed=len(group.trials) - len(group.scored),
        images=len(images) if identified is None or images else identified.n,
        clients=len({t.client for t in group.trials}),
        psnr=results.PSNRSummary(
            mean=round(fmean(means), 3),
            **mean_interval(means).rounded(3),
            highest=round(max(group.values("psnr", max)), 3),
            median=round(median(images), 3),
            lowest=round(min(images), 3),
        )
        if means
        else None,
        null_psnr=results.NullPSNR(round(fmean(bars), 3), round(max(bars), 3)) if bars else None,
        ssim_mean=_mean(group.values("ssim")),
        lpips_mean=_mean(group.values("lpips")),
        identified=identified,
        recovered=sum(map(sum, group.recovered.values())) if identified is not None else None,
        certified=group.certified,
        residual_risk=risk,
        gain=gain_of(group),
        label_f1=labels_of(group, groups),
        power=power,
        tokens=tokens_of(group),
        cost=Cost(sum(cost.gradient_evaluations for cost in costs), round(sum(cost.seconds for cost in costs), 3)),
    )


def _mean(values: list[float]) -> float | None:
    return round(fmean(values), 4) if values else None
