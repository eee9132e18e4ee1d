"""Texts beside what was read of them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from leakgauge.data import Tokens
from leakgauge.metrics.metric import counts_of
from leakgauge.observation import Reconstruction, Status, TokenCounts
from leakgauge.study.evaluate import Truth, class_prior
from leakgauge.study.evaluate_texts import evaluate_texts
from leakgauge.study.judging.results import TokenLeak
from leakgauge.study.lint import lint_plan
from leakgauge.study.plan import resolve_plan
from leakgauge.task import Batch, DataSpec
from study.plans import tiny

SPEC = DataSpec((6,), 2, vocabulary=40)


def test_a_client_who_holds_the_same_text_is_no_stranger() -> None:
    """The read of a text that many send was "identified" among the others too, and so was luck."""
    texts = torch.randint(40, (60, 6), generator=torch.Generator().manual_seed(0)).float()
    own, label = texts[:1], torch.zeros(1, dtype=torch.long)
    seen = Truth(Batch(own, label), texts[1:30], texts[30:], (Batch(own, label),) * 5, class_prior(label, 2))
    read = TokenCounts(counts_of(own, 40, None), counted=True, whole=True)
    found = evaluate_texts(Reconstruction(None, None, Status.CONVERGED, tokens=read), seen, SPEC, labels_known=False)
    assert found.scores.identified == (True,)
    assert sum(found.controls.other_client.identified) == 0


class Bag(nn.Module):
    """Mean of embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(60, 8, padding_idx=0), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.embed(x).mean(1))
        return out


def test_texts_behind_top_k_are_not_said_to_be_read_whole() -> None:
    """ "Reads the tokens of all 2 examples exactly: 12 of 62 rows moved: these tokens occur, others may"."""
    ids = torch.randint(1, 60, (60, 6), generator=torch.Generator().manual_seed(0))
    source = Tokens(inputs=ids, labels=torch.arange(60) % 2, words=[str(i) for i in range(60)], padding=0)
    raw = tiny(
        model="study.test_evaluate_texts:Bag",
        data={"source": source, "batch": 2, "batches": 2},
        attacks=["tokens"],
        gallery=5,
    )
    found = [f for f in lint_plan(resolve_plan(raw)) if f.rule == "exact-read"]
    whole, cut = (next(f.evidence for f in found if name in f.where) for name in ("none", "topk"))
    assert "the tokens of all 2 examples exactly" in whole
    assert "tokens reads tokens of the examples: " in cut
    assert "others may" in cut


def test_sets_and_counts_of_tokens_are_kept_apart() -> None:
    """ "All tokens and no others came back from 14 of 14 clients (as often as they occur from 3); F1 0.88"."""
    leak = TokenLeak(0.88, 0.8, 0.9, 1.0, 0.8, 0.29, 1.0, 3 / 14, 0.0, 14)
    said = (
        "the same tokens and no others from 14 of 14 clients, as often as they occur from 3; F1 0.88 counts how often"
    )
    assert leak.words == f"{said}, of the most frequent tokens 0.29"
    assert replace(leak, mean=1.0, counts=1.0).words.endswith("from 14; F1 1.00, of the most frequent tokens 0.29")
