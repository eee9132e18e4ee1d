"""Texts beside what was read of them."""

from __future__ import annotations

import torch

from leakgauge.metrics.tokens import counts_of
from leakgauge.observation import Reconstruction, Status, TokenCounts
from leakgauge.study.evaluate import Truth, class_prior
from leakgauge.study.evaluate_texts import evaluate_texts
from leakgauge.task import Batch, DataSpec

SPEC = DataSpec((6,), 2, vocabulary=40)


def test_a_client_who_holds_the_same_text_is_no_stranger() -> None:
    """The read of a text that many send was "identified" among the others too, and so was luck."""
    texts = torch.randint(40, (60, 6), generator=torch.Generator().manual_seed(0)).float()
    own, label = texts[:1], torch.zeros(1, dtype=torch.long)
    seen = Truth(Batch(own, label), texts[1:30], texts[30:], (Batch(own, label),) * 5, class_prior(label, 2))
    read = TokenCounts(counts_of(own, 40, None), counted=True, whole=True)
    found = evaluate_texts(Reconstruction(None, None, Status.CONVERGED, tokens=read), seen, SPEC, labels_known=False)
    assert found.scores is not None
    assert found.scores.identified == (True,)
    assert found.controls.other_client is not None
    assert sum(found.controls.other_client.identified) == 0
