"""The tokens of a client's texts, off the rows of the embedding that its update moved."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from leakgauge.attacks.closed_form.pooled import counts_of_pooled
from leakgauge.attacks.closed_form.token_places import read_places
from leakgauge.attacks.closed_form.token_prefixes import read_texts
from leakgauge.attacks.closed_form.whole_batch import mean_gradient_of, paired_labels
from leakgauge.attacks.labels import CountsFromLastLayer, Unknown
from leakgauge.attacks.matching.simulator import Explainer
from leakgauge.clients import FedSGD, rescales_entries
from leakgauge.clients.client import raw_update
from leakgauge.defenses import Clip, ClipExamples, Defense, NoDefense, parts_of, view_of
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.observation import Cost, Observation, ReadingAttack, Reconstruction, Status, TokenCounts
from leakgauge.registry import ATTACKS
from leakgauge.task import Batch, Task
from leakgauge.tensors import Tensors, Wire, map_tensors
from leakgauge.update import UpdateKind

NEEDS = "a trained embedding of the input's tokens"
PROBES = 4
"""Random batches that show whether every token moves its row."""
FULL = (
    "every row of the embedding moved: by noise, weight decay that is not known, or an output layer that shares it. "
    "Which tokens occur is not read"
)


@ATTACKS.register("tokens", needs=f"texts; {NEEDS}")
@dataclass(frozen=True)
class TokenRead(ReadingAttack):
    """Which tokens a client's texts hold, without a search.

    The row of a token that does not occur has gradient zero, so a client moves it as its optimiser moves a parameter
    without gradient: not at all, or by weight decay. Rows that moved otherwise are the tokens that occur. That needs no
    weights, holds for any number of texts and local steps, and for Adam. It proves that they occur unless the defence
    is unknown, and that no others do where random texts move every row of theirs (a layer that picks maxima leaves
    some still) and no defence leaves entries out. The padding row of ``padding_idx`` never moves.

    How often they occur is read in two cases. A model that adds a text's embeddings up moves all of its tokens alike:
    text by text (`leakgauge.attacks.closed_form.pooled`). Of one gradient, where fewer tokens reach a layer than it is
    wide, texts come back in order, certified by simulating the client: one text through any attention
    (`leakgauge.attacks.closed_form.token_places`), several where no token sees a later one
    (`leakgauge.attacks.closed_form.token_prefixes`). Elsewhere each token counts once, and the message says why.

    Not read: behind noise, where the embedding is frozen or shared with the output layer, or where tokens reach it
    as one-hot vectors.

    Source: Melis et al., *Exploiting Unintended Feature Leakage in Collaborative Learning*, 2019, for the rows; Petrov
    et al., *DAGER*, NeurIPS 2024, for the span of a layer's inputs. Differs: what decay moves is taken off by
    simulation; one layer's span alone is used; the counts of pooled texts are ours.
    """

    def read(self, observation: Observation, generator: torch.Generator) -> Reconstruction:
        """`EXACT` where every token is proved to occur. Costs the evaluations that certify an order."""
        task, known = observation.task, observation.knowledge
        if not task.data.is_text:
            return Reconstruction.not_applicable("the examples are no texts")
        table = token_table(task, generator)
        if table is None:
            return Reconstruction.not_applicable(f"needs {NEEDS}")
        moved, problem = moved_rows(observation, table)
        if moved is None:
            return Reconstruction.not_applicable(problem)
        if not bool(moved.any()):
            return Reconstruction(None, None, Status.FAILED, "no row of the embedding moved")
        labels, confidence = known.labels, None
        if labels is None:
            guess = CountsFromLastLayer().infer(observation, generator)
            if not isinstance(guess, Unknown):
                labels, confidence = guess.labels, guess.confidence
        found, spent, message = self._counted(observation, table, moved, labels, generator)
        return Reconstruction(
            None,
            labels,
            Status.CONVERGED if known.defense is None else Status.EXACT,
            message,
            label_confidence=confidence,
            cost=Cost(spent),
            paired=observation.examples == 1,
            tokens=found,
        )

    def _counted(
        self,
        observation: Observation,
        table: str,
        moved: Bool[Tensor, " v"],
        labels: Tensor | None,
        generator: torch.Generator,
    ) -> tuple[TokenCounts, int, str]:
        """What is read, the evaluations that it cost, and both in words."""
        task, known = observation.task, observation.knowledge
        keeps = known.defense is None or all(isinstance(p, Clip | ClipExamples) for p in parts_of(known.defense))
        whole = known.defense is not None and keeps and not _covers(observation, table)
        whole = whole and drives_every_token(task, table, generator)
        once = TokenCounts(moved.long()[None], False, whole)
        named = f"{int(moved.sum())} of {len(moved)} rows moved: these tokens occur"
        named += ", and no others" if whole else ", others may"
        if not keeps or rescales_entries(known.local_training) or observation.examples is None:
            return once, 0, f"{named}; how often is not read"
        pooled = counts_of_pooled(observation, table, moved)
        if pooled is not None:
            return replace(once, counts=pooled, counted=True), 0, f"{named}; counted text by text"
        if task.stochastic:
            return once, 0, f"{named}; how often is not read: the network drops at random what its layers are given"
        if labels is None or not drives_every_token(task, table, generator):
            return once, 0, f"{named}; how often is not read"
        if observation.examples == 1:
            order, why = read_places(observation, moved, generator), "their places are not seen"
            tried = iter(() if order is None else [order[None]])
        else:
            tried, why = read_texts(observation, moved, generator)
        explainer = Explainer.of(observation, generator)
        for texts in tried:
            why = "the update does not prove the texts found"
            batch = _labelled(observation, texts, labels)
            if _proved(explainer, batch, task.data.vocabulary):
                counts = torch.stack([torch.bincount(text, minlength=len(moved)) for text in texts])
                what = "the text" if len(texts) == 1 else f"{len(texts)} texts"
                verb = "explains" if len(texts) == 1 else "explain"
                return (
                    TokenCounts(counts, True, True, texts),
                    explainer.spent,
                    f"{named}; {what} in order, which {verb} the update",
                )
        return once, explainer.spent, f"{named}; how often is not read: {why}"


def _labelled(observation: Observation, texts: Int[Tensor, "n length"], labels: Int[Tensor, " n"]) -> Batch:
    """Texts with the labels that are theirs, as far as the classifier's gradient says."""
    gradient = mean_gradient_of(observation) if len(texts) > 1 else None
    own = None if gradient is None else paired_labels(observation, texts.double(), gradient)
    return Batch(texts.double(), labels if own is None else own)


def _proved(explainer: Explainer, batch: Batch, vocabulary: int) -> bool:
    """Whether texts explain the update to its rounding, and no longer do with other tokens at any place."""
    if not explainer.left(batch) <= explainer.tolerance:
        return False
    for place in range(batch.inputs.shape[1]):
        other = batch.inputs.clone()
        other[:, place] = (other[:, place] + 1) % vocabulary
        if explainer.left(Batch(other, batch.labels)) <= 10 * explainer.tolerance:
            return False
    return True


def token_table(task: Task, generator: torch.Generator) -> str | None:
    """The parameter that holds the embedding of the input's tokens, found by sending random texts through the model."""
    if not task.data.is_text:
        return None
    sent = torch.randint(task.data.vocabulary, (3, *task.data.shape), generator=generator)
    found: list[str] = []
    handles = []
    for name, module in task.module.named_modules():
        if not isinstance(module, nn.Embedding | nn.EmbeddingBag):
            continue

        def look(_: nn.Module, args: tuple[Tensor, ...], name: str = name) -> None:
            given = args[0].reshape(len(sent), -1) if args and args[0].numel() % len(sent) == 0 else sent[:, :0]
            ends = given[:, : sent.shape[1]], given[:, -sent.shape[1] :]
            if any(torch.equal(end, sent) for end in ends):
                found.append(f"{name}.weight" if name else "weight")

        handles.append(module.register_forward_pre_hook(look))
    try:
        with torch.no_grad():
            task.logits(task.parameters, task.buffers, sent.to(next(iter(task.parameters.values()))))
    finally:
        for handle in handles:
            handle.remove()
    return next((name for name in found if name in task.parameters), None)


def moved_rows(observation: Observation, table: str) -> tuple[Bool[Tensor, " v"] | None, str]:
    """Rows that did not move as one without gradient does; `None` and why where that cannot be told."""
    knowledge, sent = observation.knowledge, observation.update.tensors[table].detach().cpu()
    if knowledge.defense is not None:
        parts = parts_of(knowledge.defense)
        if any(part.without_noise() is not part for part in parts) or _adds_noise(observation):
            return None, "noise moves every row of the embedding: which tokens occur is not read"
        if any(type(part).on_batch is not Defense.on_batch for part in parts):
            return None, "the defence trains on other texts than the client holds"
    idle = _idle(observation, table)
    values, still = sent.double(), torch.zeros_like(sent, dtype=torch.float64)
    bound = torch.zeros_like(values)
    if idle is not None and bool((idle != 0).any()):
        still = idle.double()
        own = observation.task.parameters[table].detach().cpu()
        steps = _steps(observation)
        rounding = torch.finfo(own.dtype).eps * (4 + 2 * steps)
        bound = rounding * (own.double().abs() + still.abs()) + Wire.of(sent).errors(values)
    moved = ((values - still).abs() > bound).any(1)
    return (None, FULL) if too_many(moved, observation.task, observation.examples) else (moved, "")


def too_many(moved: Bool[Tensor, " v"], task: Task, examples: int | None) -> bool:
    """Whether more rows moved than texts have tokens, or all that can: the padding row may be fixed, or zero."""
    fixed = 0 if task.data.padding is None else int(not bool(moved[task.data.padding]))
    all_of_them = int(moved.sum()) >= len(moved) - fixed
    return all_of_them or (examples is not None and int(moved.sum()) > examples * task.data.shape[0])


def _adds_noise(observation: Observation) -> bool:
    defense = observation.knowledge.defense
    view = None if defense is None else view_of(defense, observation.update, None)
    return view is not None and (view.noise_scale is not None or view.log_likelihood is not None)


def _covers(observation: Observation, table: str) -> bool:
    """Whether what moves every row can cover a token's own move: Adam takes the sign of both together where its penalty
    is inside, while decay that is a share of the parameters is only added."""
    idle = _idle(observation, table)
    if idle is None or not bool((idle != 0).any()):
        return False
    own = observation.task.parameters[table].detach().cpu().double().flatten()
    share = torch.dot(idle.double().flatten(), own) / torch.dot(own, own)
    return float((idle.double().flatten() - share * own).norm()) > 1e-2 * float(idle.double().norm())


def _steps(observation: Observation) -> int:
    client, examples = observation.knowledge.local_training, observation.examples
    return 1 if client is None or examples is None else client.steps(examples)


def _idle(observation: Observation, table: str) -> Float[Tensor, "v d"] | None:
    """How the client moves parameters that never have a gradient; `None` where its training is not known."""
    task, client, examples = observation.task, observation.knowledge.local_training, observation.examples
    if client is None or examples is None or observation.update.header.kind is UpdateKind.GRADIENT:
        return None

    def nothing(
        task: Task, parameters: Tensors, buffers: Tensors, batch: Batch, model: object, defense: object
    ) -> tuple[Tensors, Tensors]:
        del task, batch, model, defense
        return map_tensors(torch.zeros_like, parameters), buffers

    batch = Batch(torch.zeros(examples, *task.data.shape), torch.zeros(examples, dtype=torch.long))
    try:
        still, _ = client.local_training(task, batch, Draws(0), nothing)
    except InputError:
        return None
    return still[table].detach().cpu()


def drives_every_token(task: Task, table: str, generator: torch.Generator) -> bool:
    """Whether every token of random texts moves its row, but for one that never does (``padding_idx``)."""
    data = task.data
    module = task.module.get_submodule(table.rpartition(".")[0])
    fixed = module.padding_idx if isinstance(module, nn.Embedding | nn.EmbeddingBag) else None
    for probe in range(PROBES):
        inputs = torch.randint(data.vocabulary, (2, *data.shape), generator=generator)
        labels = torch.randint(data.classes, (2,), generator=generator)
        raw, _ = raw_update(task, FedSGD(), Batch(inputs.float(), labels), Draws(probe), NoDefense())
        moved = set((raw[table] != 0).any(1).nonzero().flatten().tolist())
        if set(inputs.flatten().tolist()) - {fixed, data.padding} - moved:
            return False
    return True
