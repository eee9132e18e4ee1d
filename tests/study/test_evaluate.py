"""The one place where truth meets a result."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch

import leakgauge
from leakgauge.observation import Reconstruction, Status
from leakgauge.study.evaluate import Truth, class_prior, evaluate
from leakgauge.task import Batch, DataSpec

SPEC = DataSpec((3, 16, 16), 4)


def pictures(n: int, seed: int) -> torch.Tensor:
    """Coarse patches, so that pictures are nearer to grey than to each other by less than noise would be."""
    coarse = torch.rand((n, 3, 2, 2), generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.interpolate(coarse, size=SPEC.shape[1:])


def truth(n: int = 3) -> Truth:
    batch = Batch(pictures(n, 0), torch.arange(n) % 4)
    others = (Batch(pictures(n, 3), torch.zeros(n, dtype=torch.long)),)
    return Truth(batch, pictures(20, 1), pictures(10, 2), others, class_prior(torch.arange(8) % 4, 4))


def found(
    inputs: torch.Tensor | None, labels: torch.Tensor | None = None, status: Status = Status.CONVERGED
) -> Reconstruction:
    return Reconstruction(inputs, labels, status)


def test_a_permuted_perfect_answer_is_exact_for_every_image() -> None:
    t = truth()
    scores = evaluate(found(t.batch.inputs.flip(0), t.batch.labels.flip(0)), t, SPEC, labels_known=False)
    assert scores.record["scores"]["psnr"] == [300.0] * 3
    assert scores.record["scores"]["exact"] == [True] * 3
    assert scores.record["scores"]["identified"] == [True] * 3
    assert scores.record["labels"]["true_counts_f1"] == 1
    assert scores.order == (2, 1, 0)


def test_one_good_answer_repeated_serves_one_image() -> None:
    """Known defects: SSIM as a maximum over originals; one reconstruction scored for several."""
    t = truth()
    copies = t.batch.inputs[:1].expand(3, -1, -1, -1)
    scores = evaluate(found(copies), t, SPEC, labels_known=False).record["scores"]
    assert sum(scores["exact"]) == 1
    assert sum(scores["identified"]) == 1


def test_images_that_are_missing_are_not_identified_and_stay_in_the_count() -> None:
    t = truth()
    scores = evaluate(found(t.batch.inputs[1:2]), t, SPEC, labels_known=False).record["scores"]
    assert scores["psnr"] == [None, 300.0, None]
    assert scores["identified"] == [False, True, False]


def test_scores_are_per_image_and_never_pooled() -> None:
    """Known defects: PSNR summed over images; PSNR pooled over a batch."""
    t = truth()
    noisy = t.batch.inputs.clone()
    noisy[1] = (noisy[1] + 0.1).clamp(0, 1)
    together = evaluate(found(noisy, t.batch.labels), t, SPEC, labels_known=True).record["scores"]["psnr"]
    for i in range(3):
        alone = Truth(t.batch.take(torch.tensor([i])), t.gallery, t.public, (), t.prior)
        one = evaluate(found(noisy[i : i + 1]), alone, SPEC, labels_known=True).record["scores"]["psnr"]
        assert one[0] == pytest.approx(together[i])


def test_grey_is_not_identified_and_not_above_the_nulls() -> None:
    t = truth()
    scrambled = t.batch.inputs.flatten(1)[:, torch.randperm(768)].view(-1, *SPEC.shape)  # as near to grey as the truth
    t = Truth(t.batch, scrambled, t.public, (), t.prior)
    record = evaluate(found(torch.full_like(t.batch.inputs, 0.5)), t, SPEC, labels_known=False).record
    assert not any(record["scores"]["identified"])
    bars = record["controls"]["nearest_public"]["psnr"]
    assert all(p < b + 3 for p, b in zip(record["scores"]["psnr"], bars, strict=True))


@pytest.mark.parametrize("status", [Status.NON_FINITE, Status.NOT_APPLICABLE, Status.FAILED])
def test_no_result_has_no_scores_but_keeps_its_nulls(status: Status) -> None:
    record = evaluate(found(None, None, status), truth(), SPEC, labels_known=False).record
    assert record["scores"] is None
    assert record["labels"] is None
    assert record["status"] == status.value
    assert len(record["controls"]["nearest_public"]["psnr"]) == 3


def test_other_clients_examples_are_scored_too() -> None:
    t = truth()
    record = evaluate(found(t.others[0].inputs), t, SPEC, labels_known=False).record
    assert record["controls"]["other_client"]["psnr"] == [300.0] * 3
    assert max(record["scores"]["psnr"]) < 20


def test_not_a_number_in_an_answer_does_not_reach_the_report() -> None:
    t = truth()
    broken = t.batch.inputs.clone()
    broken[0, 0, 0, 0] = float("nan")
    record = evaluate(found(broken), t, SPEC, labels_known=False).record
    assert all(isinstance(v, float) and v == v for v in record["scores"]["psnr"])


def test_data_need_not_be_images() -> None:
    signal = DataSpec((30,), 3, low=-1.0, high=1.0)
    x = torch.rand(2, 30) * 2 - 1
    t = Truth(Batch(x, torch.tensor([0, 2])), torch.rand(9, 30), torch.rand(5, 30), (), class_prior(torch.arange(3), 3))
    scores = evaluate(found(x + 0.1), t, signal, labels_known=True).record["scores"]
    assert scores["ssim"] is None
    assert all(p > 20 for p in scores["psnr"])


def test_truth_meets_results_in_one_module_only() -> None:
    """No attack, defence, client or task module imports the evaluator or a score."""
    root = Path(inspect.getfile(leakgauge)).parent
    for folder in ("attacks", "clients", "defenses", "servers"):
        for path in (root / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            assert "leakgauge.study" not in text, path
            assert "leakgauge.metrics" not in text, path


def test_labels_that_belong_to_no_slot_do_not_pair_images() -> None:
    """A closed form reads images in its own order: a sorted multiset of labels must not force wrong mates."""
    t = truth()
    shuffled = t.batch.inputs[[2, 0, 1]]
    unpaired = Reconstruction(shuffled, t.batch.labels, Status.CONVERGED, paired=False)
    record = evaluate(unpaired, t, SPEC, labels_known=False).record
    assert record["scores"]["psnr"] == [300.0] * 3
    assert record["labels"]["true_counts_f1"] == 1


def test_more_answers_than_examples_do_not_help() -> None:
    t = truth(1)
    many = torch.cat([pictures(40, 8), t.batch.inputs])
    record = evaluate(found(many), t, SPEC, labels_known=False).record
    assert record["scores"]["exact"] == [False]
