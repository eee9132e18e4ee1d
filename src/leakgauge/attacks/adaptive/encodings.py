"""What hides examples and can be read: MixUp's weights, PRECODE's draw ε; why nothing undoes InstaHide."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from leakgauge.attacks.adaptive.counter import COUNTERS, NoneKnown, counters
from leakgauge.attacks.labels.strategy import HeadSpan, Unknown, find_classifier, least_squares
from leakgauge.attacks.matching import Cosine, Matching
from leakgauge.attacks.matching.parts import BUFFER, CosinePerTensor, Hidden
from leakgauge.defenses import InstaHide, MixUp, Precode
from leakgauge.defenses.representations import bottlenecks, draw_buffer, mixed, moments
from leakgauge.observation import Observation
from leakgauge.task import Batch, DataSpec, Task, cross_entropy
from leakgauge.tensors import Tensors
from leakgauge.tracing import LinearLayer, linear_layers

MOST_EXAMPLES = 8  # the read has 2n² unknowns
UNEXPLAINED_MIXTURE = 1e-3  # misfit of a mixing matrix above which it is not believed: the update was changed
UNEXPLAINED = 1e-6  # misfit of the classifier's gradient above which a read of several ε is not believed
LARGEST = 5.0  # bound of a read ε: one of 256 normal draws exceeds it once in seven thousand rounds
TRIES, ITERATIONS = 8, 300  # fits, and iterations of each at most
MIXING = "mixing"


@dataclass(frozen=True, eq=False, kw_only=True)
class Mixing(Hidden):
    """The client trained on `matrix` times the examples; a `Hidden` part. The update does not tell in which order the
    mixed examples were, so any row permutation of the client's matrix is as good: the examples that come out are the
    client's, in the order of their labels."""

    matrix: Float[Tensor, "n n"]
    # refine the matrix in the search, as a soft-max of logits. Needed where labels repeat, which weights of equal
    # labels cannot be told by.
    free: bool = False

    def start(self, examples: int, data: DataSpec, generator: torch.Generator) -> Tensors:
        return {MIXING: self.matrix.double().clamp_min(1e-4).log()} if self.free else {}

    def encode(self, batch: Batch, variables: Tensors) -> Batch:
        return mixed(batch, variables[MIXING].softmax(1) if self.free else self.matrix)


def head_of(observation: Observation, n: int) -> tuple[LinearLayer, HeadSpan] | None:
    """The classifier and the span of its gradient; `None` without a single gradient and its classifier, or where there
    are more examples than outputs or features."""
    sent, classifier = observation.gradient, find_classifier(observation)
    if sent is None or isinstance(classifier, Unknown) or n > min(sent[classifier.weight].shape):
        return None
    return classifier, HeadSpan.of(classifier.of(observation.task.parameters), classifier.of(sent), (n,))


def read_mixing(
    observation: Observation, labels: Int[Tensor, " n"], generator: torch.Generator
) -> tuple[Float[Tensor, "n n"], float] | None:
    """M from ∂L/∂W = (1/n) Σᵢ (softmax(W fᵢ + b) − (M Y)ᵢ) fᵢᵀ and ∂L/∂b, the classifier's, where Y is one-hot.

    The n leading right singular vectors of ∂L/∂W span the features fᵢ. In that basis unknown are their n²
    coordinates and the n(n − 1) weights, and known are outputs × (n + 1) numbers. Solved by least squares from
    the features of random inputs, `TRIES` times; the best fit is the answer.

    Its rows are in an order of their own, its columns in that of the labels; beside it the share of the classifier's
    gradient that it does not explain. `None` where it cannot be: not one gradient, no classifier, one example, or more
    than `MOST_EXAMPLES` or outputs."""
    observation, n = observation.view, len(labels)
    if not 1 < n <= MOST_EXAMPLES or observation.task.loss is not cross_entropy:
        return None
    head = head_of(observation, n)
    if head is None or head[1].shifted is None:
        return None
    classifier, span = head
    one_hot = F.one_hot(labels.cpu(), len(span.weight)).double()
    data, like = observation.task.data, next(iter(observation.task.parameters.values()))
    starts = torch.empty(TRIES, 2, n, n, dtype=torch.float64)
    for features, logits in starts:
        x = data.low + data.range * torch.rand((n, *data.shape), generator=generator)
        features[:] = classifier.features(observation.task, x.to(like)) @ span.basis.T
        logits[:] = 2 * torch.eye(n) + 0.5 * torch.randn((n, n), generator=generator, dtype=torch.float64)

    def misfit(v: Float[Tensor, "2 n n"]) -> Tensor:
        return span.residual(v[0], v[1].softmax(1) @ one_hot)

    found, left = least_squares(misfit, starts, ITERATIONS)
    best = int(left.argmin())
    return found[best, 1].softmax(1), float(left[best]) ** 2


def _for_the_mixture(observation: Observation) -> str:
    if observation.knowledge.labels is None:
        return "the labels"
    if observation.gradient is None:
        return "a single gradient"
    if not 1 < len(observation.knowledge.labels) <= MOST_EXAMPLES:
        return f"a batch of two to {MOST_EXAMPLES} examples"
    return ""


@counters(
    MixUp,
    name="unmixing",
    because="who mixed with whom, and how much, is written in the classifier's gradient, labels known",
    missing=_for_the_mixture,
)
def unmix(attack: Matching, _: MixUp, observation: Observation) -> Matching:
    """The mixing matrix is read first (`read_mixing`), and the examples are searched for through it.

    Needs the labels and a single gradient; without them, or where the read does not explain the classifier's gradient,
    the attack stays as it is and finds mixed images. Undoing the mixture of two costs 1/(2λ − 1) in precision:
    near λ = ½ nothing is gained, at exactly ½ nothing can be.
    """
    labels = observation.knowledge.labels
    if labels is None or observation.knowledge.draws is not None:
        return attack
    read = read_mixing(observation, labels, torch.Generator().manual_seed(0))
    if read is None or not read[1] < UNEXPLAINED_MIXTURE:
        return attack
    return replace(attack, hidden=(*attack.hidden, Mixing(matrix=read[0], free=len(labels.unique()) < len(labels))))


COUNTERS[InstaHide] = NoneKnown(
    "one update holds one encoding of each picture; Carlini et al. (2021) needed the encodings of many epochs, to find "
    "which share a picture and to solve for it from |encoding|, with the signs lost",
    broken_by="Carlini et al. (2021) solve for InstaHide's pictures from the encodings of many epochs",
)


@dataclass(frozen=True, eq=False, kw_only=True)
class BottleneckDraw(Hidden):
    """ε of one bottleneck as a variable of shape (examples, size); a `Hidden` part. Without a prior: the decoder's
    gradient fixes it."""

    buffer: str
    first: Float[Tensor, "n size"]

    def start(self, examples: int, data: DataSpec, generator: torch.Generator) -> Tensors:
        return {BUFFER + self.buffer: self.first}


def read_draws(
    observation: Observation, name: str, labels: Int[Tensor, " n"] | None, generator: torch.Generator
) -> Float[Tensor, "n size"] | None:
    """ε of each example, (bᵢ − μ) ÷ σ with the broadcast encoder, clamped to ±5; `None` where it is not told.

    What enters a biased linear layer is weight gradient ÷ bias gradient. So of one example encoder and decoder tell the
    features f and b = μ(f) + σ(f)·ε. Exact for one gradient, as sampling hides neither; a start for several local steps
    or a changed update. Of several examples with known labels b is what `read_codes` has, and μ and σ are those of one
    mixture of the features: the search does the rest."""
    task, tensors = observation.task, observation.update.tensors
    encoder, decoder = (_biased(task, f"{name}.{part}".removeprefix(".")) for part in ("encoder", "decoder"))
    if encoder is None or decoder is None:
        return None
    features, codes = encoder.entered(tensors), decoder.entered(tensors)
    if observation.examples != 1:
        codes = None if labels is None else read_codes(observation, name, labels, generator)
    if features is None or codes is None:
        return None
    mean, std = moments(F.linear(features, *encoder.of(task.parameters)))
    return ((codes - mean) / std.clamp_min(1e-6)).nan_to_num().clamp(-LARGEST, LARGEST)


def read_codes(
    observation: Observation, name: str, labels: Int[Tensor, " n"], generator: torch.Generator
) -> Float[Tensor, "n size"] | None:
    """b of each of several examples, from the gradient of the classifier that reads the bottleneck.

    What enters the classifier, hᵢ = decoder(bᵢ), lies in the span of its gradient (`HeadSpan`). Its n² coordinates are
    solved for by least squares, from normal draws of b; the decoder's then give bᵢ. Examples of equal labels come in
    any order. `None` where that cannot be: not one gradient, another layer behind the bottleneck, or no fit."""
    n, decoder = len(labels), _biased(observation.task, f"{name}.decoder")
    head = head_of(observation, n)
    if head is None or decoder is None or head[0].name.rpartition(".")[0] != name.rpartition(".")[0]:
        return None
    span = head[1]
    one_hot = F.one_hot(labels.cpu(), len(span.weight)).double()
    weight, bias = decoder.of(observation.task.parameters)
    assert bias is not None
    codes = torch.randn((TRIES, n, weight.shape[1]), generator=generator, dtype=torch.float64)
    starts = F.linear(codes, weight, bias) @ span.basis.T
    found, left = least_squares(lambda h: span.residual(h, one_hot), starts, ITERATIONS)
    if not float(left.min()) ** 2 < UNEXPLAINED:
        return None
    solved: Tensor = torch.linalg.lstsq(weight, (found[left.argmin()] @ span.basis - bias).T).solution.T
    return solved


def _biased(task: Task, name: str) -> LinearLayer | None:
    """A layer of which weight and bias train."""
    return next((one for one in linear_layers(task) if one.name == name and one.bias is not None), None)


def _for_the_draw(observation: Observation) -> str:
    examples, client = observation.examples, observation.knowledge.local_training
    if examples is None:
        return "the number of examples"
    ordered = client is None or not client.shuffle or examples == 1
    if not ordered or any(part != examples for part in (() if client is None else client.parts(examples))):
        return "local steps that see the whole batch in one order"
    return ""


@counters(
    Precode,
    name="sampled-bottleneck",
    because="the bottleneck's own gradient fixes what was sampled, and the layers below it are sent as they are",
    missing=_for_the_draw,
)
def know_the_draw(attack: Matching, _: Precode, observation: Observation) -> Matching:
    """ε joins the variables, starting from what the gradient tells of it: exact for one example, near for several of
    known labels (`read_draws`), else zero; and every tensor counts alike in a cosine.

    The second matters as much: encoder and decoder have 20 to 50 times the norm of a convolution of LeNet, which
    the global cosine then hardly sees. ε is one variable an example, so it is shared by the steps of a FedAvg client,
    and left to a draw of the attacker's own where steps see parts of the batch."""
    if isinstance(attack.objective, Cosine):
        attack = replace(attack, objective=CosinePerTensor())
    examples = observation.examples
    if observation.knowledge.draws is not None or examples is None or _for_the_draw(observation):
        return attack
    hidden = list[Hidden]()
    for name, part in bottlenecks(observation.task).items():
        read = read_draws(observation, name, observation.knowledge.labels, torch.Generator().manual_seed(0))
        first = torch.zeros(examples, part.decoder.in_features, dtype=torch.float64) if read is None else read
        hidden.append(BottleneckDraw(buffer=draw_buffer(name), first=first))
    return replace(attack, hidden=(*attack.hidden, *hidden))
