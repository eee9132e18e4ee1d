"""Which defences are differentially private, of what, and how much: over a training, and in a single update."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from leakgauge.clients import Protocol
from leakgauge.defenses import Defense, parts_of, steps_of
from leakgauge.defenses.steps import DefenseStage, DefenseStep, EntryMask, Mix, Noise, Nonlinear, PerExampleScale, Scale
from leakgauge.privacy.accounting import Guarantee, Release, Unit, check_accountant, epsilon_of, epsilon_of_noise
from leakgauge.update import UpdateKind


@dataclass(frozen=True)
class NoGuarantee:
    """There is no ε, with the reason."""

    reason: str


@dataclass(frozen=True)
class Mechanism:
    """A Gaussian mechanism inside a defence. It releases as often about one unit in one update as local steps meet an
    example; once for a client, whose update gets its noise as a whole."""

    noise_multiplier: float
    unit: Unit
    releases: int = 1

    def epsilon(self, delta: float) -> float:
        """That of one update: exact, without sampling; infinite where it is beyond use."""
        try:
            return epsilon_of_noise(self.noise_multiplier, delta, self.releases)
        except (ValueError, ArithmeticError, RuntimeError):
            return math.inf


def guarantee(
    defense: Defense,
    *,
    sample_rate: float,
    steps: int,
    delta: float,
    accountant: str = "rdp",
    examples: int | None = None,
    layers: int | None = None,
    gradient: bool = True,
) -> Guarantee | NoGuarantee:
    """What a defence guarantees over a training, or why nothing.

    What comes after clip and noise is post-processing, unless it looks at the data again (Soteria). What comes before
    does not matter, as long as it does not mix the units. Where one client is hidden, so is each of its examples;
    a composition with both kinds of noise gets the client's. Raises `InputError`: numbers out of range, gdp as the
    accountant, or no Opacus.

    Args:
        sample_rate: probability that a unit is in a step. It counts only if the server cannot see who takes part:
            for one whose updates the server receives one by one, the rate of clients is 1.
        steps: of noise: local steps times rounds for dp-sgd, rounds in which the client sends for client-dp.
        examples: in one step, for fed-cdp, and for clip-examples with noise on the gradient (fedsgd).
        layers: of the model, for fed-cdp (`leakgauge.defenses.layers_of`).
        gradient: whether the client sends a gradient (fedsgd), not a delta: clip-examples with noise on a delta of
            several steps bounds nothing.
    """
    check_accountant(accountant)
    Release(noise_multiplier=1.0, sample_rate=sample_rate, steps=steps)  # checks the numbers even without a mechanism
    found = mechanism(defense, examples=examples, layers=layers, gradient=gradient)
    if isinstance(found, NoGuarantee):
        return found
    return counted(found, sample_rate=sample_rate, steps=steps, delta=delta, accountant=accountant)


def counted(
    found: Mechanism, *, sample_rate: float, steps: int, delta: float, accountant: str
) -> Guarantee | NoGuarantee:
    """The `guarantee` of so many steps of a mechanism."""
    z = found.noise_multiplier
    epsilon = epsilon_of([Release(noise_multiplier=z, sample_rate=sample_rate, steps=steps)], delta, accountant)
    if not math.isfinite(epsilon):
        return NoGuarantee(f"noise multiplier {z:.3g} is too small for a finite ε")
    return Guarantee(epsilon, delta, accountant, found.unit, z, sample_rate, steps)


def mechanism(
    defense: Defense, *, examples: int | None = None, layers: int | None = None, gradient: bool = True
) -> Mechanism | NoGuarantee:
    """The Gaussian mechanism in a defence, and its unit; see `guarantee`."""
    if not parts_of(defense):
        return NoGuarantee("the update is sent as it is: neither clip nor noise")
    steps = steps_of(defense)
    heir = next((step for step in steps if isinstance(step, Nonlinear) and step.derived), None)
    if heir is not None:
        return NoGuarantee(f"{heir.by} changes what the defence that it derives from does to an update")
    by_client = _client_mechanism(steps)
    if isinstance(by_client, Mechanism):
        return by_client
    in_examples = any(step.stage is DefenseStage.EXAMPLES for step in steps)
    reason = _no_example_mechanism(steps) if in_examples else by_client
    if reason or not in_examples:
        return NoGuarantee(reason or _why_not(steps, defense))
    last = next(step for step in reversed(steps) if step.stage is DefenseStage.EXAMPLES)
    if isinstance(last, Noise):
        unstated = "the noise on example gradients is not stated in units of what bounds them"
        z = unstated if last.multiplier is None else last.multiplier(examples, layers)
    else:
        z = _noise_on_gradient(steps, last, examples, gradient) or _why_not(steps, defense)
    return NoGuarantee(z) if isinstance(z, str) else Mechanism(z, Unit.EXAMPLE)


def _client_mechanism(steps: Sequence[DefenseStep]) -> Mechanism | str:
    """The strongest clip + noise of the update stage behind which nothing looks at the data, or why there is none."""
    best: Mechanism | str = ""
    bound = math.inf
    for step in (step for step in steps if step.stage is DefenseStage.UPDATE):
        if step.looks and isinstance(best, Mechanism):  # a mask tells of the batch what the noise has hidden
            best = f"{step.by} looks at the batch after the noise"
        if isinstance(step, Scale):
            bound = step.bound
        elif isinstance(step, Noise):
            z = step.sigma / bound if step.gaussian and step.sigma is not None else 0.0
            bound = math.inf
            if z > 0 and not (isinstance(best, Mechanism) and best.noise_multiplier >= z):
                best = Mechanism(z, Unit.CLIENT)
        elif not isinstance(step, EntryMask) or step.lengthens:  # zeroing does not lengthen the update
            bound = math.inf
    return best


def _no_example_mechanism(steps: Sequence[DefenseStep]) -> str:
    """Why noise on clipped example gradients, if there is any, hides no example; empty where it may."""
    for step in steps:
        if step.stage is DefenseStage.BATCH and not (isinstance(step, Mix) and not step.several):
            return f"{step.by} changes the batch, so that one example may reach many gradients"
    stage = [step for step in steps if step.stage is DefenseStage.EXAMPLES]
    for step in stage:
        if not isinstance(step, PerExampleScale | Noise):
            return f"{step.by} changes example gradients in a way that is not known to be bounded"
    if any(isinstance(step, Noise) for step in stage[:-1]):
        return f"{stage[-1].by} changes single gradients after the noise, which is in their mean only"
    return next((f"{step.by} looks at the batch after the noise" for step in steps if step.looks), "")


def _noise_on_gradient(
    steps: Sequence[DefenseStep], clip: DefenseStep, examples: int | None, gradient: bool
) -> float | str:
    """[clip-examples, noise(σ)] on the mean gradient of n, which the wire says: z = σ·n/C; empty without such noise."""
    first = next((step for step in steps if step.stage is DefenseStage.UPDATE), None)
    if not isinstance(first, Noise) or not first.gaussian or first.sigma is None:
        return ""
    assert isinstance(clip, PerExampleScale)
    if clip.by_layer:
        return "each layer is clipped by itself, so the bound of the whole depends on their number"
    if not math.isfinite(clip.bound):
        return ""
    if not gradient:
        return (
            "noise on a delta of steps with clipped gradients: one example moves the later steps by more than its own "
            "gradient (dp-sgd adds noise in every step)"
        )
    unknown = "noise on the mean of n clipped gradients: its ε depends on n, not given (dp-sgd scales the noise with n)"
    return unknown if examples is None else first.sigma * examples / clip.bound


def _why_not(steps: Sequence[DefenseStep], defense: Defense) -> str:
    noises = [step for step in steps if isinstance(step, Noise) and step.stage is DefenseStage.UPDATE]
    if any(step.gaussian and step.sigma is None for step in noises):
        return "the noise is scaled with the update itself, so its size depends on the data"
    if any(step.gaussian for step in noises):
        return "noise without a clip right before it: one unit may move the update by any amount"
    if noises:
        return "Laplace noise answers to the L1 norm, which no clip here bounds, and is not counted"
    if steps and all(isinstance(step, Scale | PerExampleScale) for step in steps):
        return "clipping without noise bounds the update and hides nothing"
    looks = next((step for step in steps if step.looks and isinstance(step, EntryMask)), None)
    if looks is not None:
        return f"{looks.by.lower()} sends the kept entries as they are"
    return f"{', '.join(type(part).__name__ for part in parts_of(defense))}: no clip with noise of known size"


def local_use(client: Protocol, examples: int) -> tuple[int, int, bool]:
    """What a client's local training does with its examples: in how many local steps of an update each is, one of every
    epoch; how many the smallest step has, in which noise on a mean counts least; and whether it sends the gradient of
    one step, not a delta. With secure aggregation it is that of the least protected client: each one's noise covers its
    share of the mean. Raises `InputError` where the clients of a cohort cannot share so many examples."""
    each = [(one.parts(n), n) for one, n in client.clients(examples)]
    steps = max(-(-sum(parts) // n) for parts, n in each)
    return steps, min(min(parts) for parts, _ in each), client.kind is UpdateKind.GRADIENT


DELTA = 1e-5  # at which ε is stated where nobody gives another
USEFUL = 1000.0  # ε above which no number is stated: e^ε times any chance is certainty


def in_words(epsilon: float) -> str:
    """ε to three digits, or that it bounds nothing that matters: one number for it everywhere."""
    return f"{epsilon:.3g}" if epsilon < USEFUL else f"beyond use (over {USEFUL:g})"


def spent_in_one_update(
    defense: Defense, clients: Iterable[Protocol], examples: int, layers: int | None = None
) -> Mechanism | NoGuarantee:
    """That of the client whose update gives away most, or why one of them has none."""
    found: list[Mechanism] = []
    for steps, smallest, gradient in (local_use(client, examples) for client in clients):
        stated = mechanism(defense, examples=smallest, layers=layers, gradient=gradient)
        if isinstance(stated, NoGuarantee):
            return stated
        found.append(stated if stated.unit is Unit.CLIENT else replace(stated, releases=steps))
    return max(found, key=lambda one: one.releases**0.5 / one.noise_multiplier)
