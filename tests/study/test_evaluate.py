"""The one place where truth meets a result."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import leakgauge
from convolutions import Block, made, observed
from hunt.zoo import POOLS
from leakgauge.attacks.features.read import HiddenTensors
from leakgauge.attacks.recipes.features import bare
from leakgauge.observation import Reconstruction, Status
from leakgauge.study.evaluate import Truth, class_prior, evaluate
from leakgauge.task import Batch, DataSpec
from same.spellings import Spelled
from study.plans import pictures as coarse
from study.plans import truth as truth_of

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
    assert scores.scores.psnr == (300.0,) * 3
    assert scores.scores.exact == (True,) * 3
    assert scores.scores.identified == (True,) * 3
    assert scores.labels.true_counts_f1 == 1
    assert scores.order == (2, 1, 0)


def test_one_good_answer_repeated_serves_one_image() -> None:
    """Known defects: SSIM as a maximum over originals; one reconstruction scored for several."""
    t = truth()
    copies = t.batch.inputs[:1].expand(3, -1, -1, -1)
    scores = evaluate(found(copies), t, SPEC, labels_known=False).scores
    assert sum(scores.exact) == 1
    assert sum(scores.recovered) == 1


def test_images_that_are_missing_are_not_identified_and_stay_in_the_count() -> None:
    t = truth()
    scores = evaluate(found(t.batch.inputs[1:2]), t, SPEC, labels_known=False).scores
    assert scores.psnr == (None, 300.0, None)
    assert scores.identified == (False, True, False)


def test_scores_are_per_image_and_never_pooled() -> None:
    """Known defects: PSNR summed over images; PSNR pooled over a batch."""
    t = truth()
    noisy = t.batch.inputs.clone()
    noisy[1] = (noisy[1] + 0.1).clamp(0, 1)
    together = evaluate(found(noisy, t.batch.labels), t, SPEC, labels_known=True).scores.psnr
    for i in range(3):
        alone = Truth(t.batch.take(torch.tensor([i])), t.gallery, t.public, (), t.prior)
        one = evaluate(found(noisy[i : i + 1]), alone, SPEC, labels_known=True).scores.psnr
        assert one[0] == pytest.approx(together[i])


def test_grey_is_not_identified_and_not_above_the_nulls() -> None:
    t = truth()
    scrambled = t.batch.inputs.flatten(1)[:, torch.randperm(768)].view(-1, *SPEC.shape)  # as near to grey as the truth
    t = Truth(t.batch, scrambled, t.public, (), t.prior)
    record = evaluate(found(torch.full_like(t.batch.inputs, 0.5)), t, SPEC, labels_known=False)
    assert not any(record.scores.identified)
    bars = record.controls.nearest_public.psnr
    assert all(p < b + 3 for p, b in zip(record.scores.psnr, bars, strict=True))


@pytest.mark.parametrize("status", [Status.NON_FINITE, Status.NOT_APPLICABLE, Status.FAILED])
def test_no_result_has_no_scores_but_keeps_its_nulls(status: Status) -> None:
    record = evaluate(found(None, None, status), truth(), SPEC, labels_known=False)
    assert record.scores is None
    assert record.labels is None
    assert len(record.controls.nearest_public.psnr) == 3


def test_other_clients_examples_are_scored_too() -> None:
    t = truth()
    record = evaluate(found(t.others[0].inputs), t, SPEC, labels_known=False)
    assert record.controls.other_client.psnr[:3] == (300.0,) * 3
    assert max(record.scores.psnr) < 20


def test_not_a_number_in_an_answer_does_not_reach_the_report() -> None:
    t = truth()
    broken = t.batch.inputs.clone()
    broken[0, 0, 0, 0] = float("nan")
    record = evaluate(found(broken), t, SPEC, labels_known=False)
    assert all(isinstance(v, float) and v == v for v in record.scores.psnr)


def test_data_need_not_be_images() -> None:
    signal = DataSpec((30,), 3, low=-1.0, high=1.0)
    x = torch.rand(2, 30) * 2 - 1
    t = Truth(Batch(x, torch.tensor([0, 2])), torch.rand(9, 30), torch.rand(5, 30), (), class_prior(torch.arange(3), 3))
    scores = evaluate(found(x + 0.1), t, signal, labels_known=True).scores
    assert scores.ssim is None
    assert all(p > 20 for p in scores.psnr)


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
    record = evaluate(unpaired, t, SPEC, labels_known=False)
    assert record.scores.psnr == (300.0,) * 3
    assert record.labels.true_counts_f1 == 1


def test_more_answers_than_examples_do_not_help() -> None:
    t = truth(1)
    many = torch.cat([pictures(40, 8), t.batch.inputs])
    record = evaluate(found(many), t, SPEC, labels_known=False)
    assert record.scores.exact == (False,)


def photos(n: int, seed: int) -> torch.Tensor:
    """Smooth pictures with as much structure as photos have."""
    coarse = torch.rand((n, 3, 6, 6), generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.interpolate(coarse, size=(32, 32), mode="bicubic").clamp(0, 1)


WIDE = DataSpec((3, 32, 32), 4)


def photo_truth(n: int = 2, trained: torch.Tensor | None = None) -> Truth:
    batch = Batch(photos(n, 0), torch.arange(n) % 4)
    return Truth(batch, photos(60, 1), photos(40, 2), (), class_prior(torch.arange(8) % 4, 4), trained)


def noise(x: torch.Tensor, scale: float) -> torch.Tensor:
    return scale * torch.randn(x.shape, generator=torch.Generator().manual_seed(9))


SEEN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contrast .3": lambda x: 0.3 * x + 0.35,
    "negative": lambda x: 1 - x,
    "mirrored": lambda x: x.flip(-1),
    "moved by 4": lambda x: x.roll((4, 4), (2, 3)),
    "on its side": lambda x: x.rot90(1, (2, 3)),
    "dark, moved, mirrored": lambda x: 0.4 * x.flip(-1).roll(-3, 2),
    "10 dB of noise": lambda x: x + noise(x, 0.3),
    "colours of its own": lambda x: x * torch.tensor([0.5, 1.0, 0.8]).view(3, 1, 1),
}
"""Pictures that anybody recognises. All but the noise were "not recovered", at 6 to 16 dB."""

NOTHING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "its mean colour": lambda x: x.mean((2, 3), keepdim=True).expand_as(x).clone(),
    "grey": lambda x: torch.full_like(x, 0.5),
    "noise": lambda x: 0.5 + noise(x, 0.2),
    "other pictures": lambda x: photos(len(x), 77),
    "the mean picture": lambda x: photos(40, 2).mean(0, keepdim=True).expand_as(x).clone(),
}


@pytest.mark.parametrize("change", SEEN.values(), ids=SEEN)
def test_what_a_person_recognises_is_recovered(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    t = photo_truth()
    scores = evaluate(found(change(t.batch.inputs)), t, WIDE, labels_known=False).scores
    assert scores.identified == (True, True)
    assert scores.recovered == (True, True)


@pytest.mark.parametrize("made", NOTHING.values(), ids=NOTHING)
def test_what_owes_nothing_to_the_picture_is_not(made: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Mean colour alone identified .48 in a line-up of four, and .43 of 4 × 4 pictures."""
    t = photo_truth()
    scores = evaluate(found(made(t.batch.inputs)), t, WIDE, labels_known=False).scores
    assert scores.recovered == (False, False)


@pytest.mark.parametrize(("side", "gallery"), [(4, 30), (32, 3)])
def test_mean_colour_identifies_nobody(side: int, gallery: int) -> None:
    x, others = (torch.rand((k, 3, side, side), generator=torch.Generator().manual_seed(k)) for k in (8, gallery))
    colour = x.mean((2, 3), keepdim=True).expand_as(x).clone()
    t = Truth(Batch(x, torch.arange(8) % 4), others, others, (), class_prior(torch.arange(8) % 4, 4))
    scores = evaluate(found(colour), t, DataSpec((3, side, side), 4), labels_known=False).scores
    assert not any(scores.identified)


def test_a_read_of_what_the_client_trained_on_is_found() -> None:
    """A transformed picture came out exactly, at 10.8 dB of the original: "not recovered"."""
    x = photos(2, 0)
    trained = 0.7 * x.flip(-1).roll((8, -8), (2, 3)) + 0.2
    scores = evaluate(found(trained), photo_truth(trained=trained), WIDE, labels_known=False).scores
    assert max(v for v in scores.psnr if v is not None) < 14
    assert scores.trained_psnr == (300.0, 300.0)
    assert scores.recovered == scores.identified == (True, True)


def test_a_transformed_picture_that_did_not_come_out_is_not_found() -> None:
    trained = photos(2, 0).flip(-1)
    scores = evaluate(found(photos(2, 33)), photo_truth(trained=trained), WIDE, labels_known=False).scores
    assert scores.recovered == (False, False)


def test_look_alikes_do_not_hide_a_picture_that_is_plainly_seen() -> None:
    """Chests among chests: every public one is within 3 dB of a read that anybody can tell from all others."""
    common = photos(1, 5)

    def chests(n: int, seed: int) -> torch.Tensor:
        return (0.85 * common + 0.15 * photos(n, seed)).clamp(0, 1)

    x = chests(2, 11)
    t = Truth(Batch(x, torch.tensor([0, 1])), chests(60, 12), chests(64, 13), (), class_prior(torch.arange(4), 4))
    read = x + noise(x, 0.024)
    result = evaluate(found(read), t, WIDE, labels_known=False)
    assert all(
        p is not None and p < bar + 6
        for p, bar in zip(result.scores.psnr, result.controls.nearest_public.psnr, strict=True)
    )
    assert result.scores.recovered == (True, True)
    template = evaluate(found(chests(64, 13).mean(0, keepdim=True).repeat(2, 1, 1, 1)), t, WIDE, labels_known=False)
    assert template.scores.recovered == (False, False), "the chest that all have in common is nobody's"


def test_certified_reads_are_counted() -> None:
    t = photo_truth()
    both = evaluate(found(t.batch.inputs, status=Status.EXACT), t, WIDE, labels_known=False).scores
    one = evaluate(
        Reconstruction(t.batch.inputs, None, Status.CONVERGED, certified=torch.tensor([True, False])),
        t,
        WIDE,
        labels_known=False,
    ).scores
    assert (both.certified, one.certified) == (2, 1)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 4])
def test_chance_is_what_strangers_reach_by_the_same_procedure(batch: int) -> None:
    """Alignment and assignment try thousands of ways: over 120 reads of noise and of other pictures, own images are
    identified no more often than strangers', and nothing is recovered."""
    own, strange, tried, recovered = 0, 0, 0, 0
    for k in range(120 // batch):
        x = photos(batch, 1000 + k)
        t = Truth(
            Batch(x, torch.zeros(batch, dtype=torch.long)), photos(60, 1), photos(64, 2000 + k), (), torch.ones(4) / 4
        )
        read = photos(batch, 3000 + k) if k % 2 else torch.rand(x.shape, generator=torch.Generator().manual_seed(k))
        result = evaluate(found(read), t, WIDE, labels_known=False)
        own += sum(result.scores.identified)
        recovered += sum(result.scores.recovered)
        strange += sum(result.controls.other_client.identified)
        tried += len(result.controls.other_client.psnr)
    rate = strange / tried
    assert rate <= 0.12
    assert own / 120 <= rate + 3 * (rate * (1 - rate) / 120) ** 0.5
    assert recovered <= 1


def test_the_next_frame_of_a_film_is_no_stranger() -> None:
    """With a near copy of each picture in the line-up, a read at 24 dB "identified" nobody."""
    frames = coarse(3, 0)
    x, read = (
        (frames + noise * torch.randn(frames.shape, generator=torch.Generator().manual_seed(seed))).clamp(0, 1)
        for noise, seed in ((0.02, 9), (0.06, 8))
    )
    seen = truth_of(x, torch.cat([frames, coarse(40, 1)]))
    scores = evaluate(Reconstruction(read, None, Status.CONVERGED), seen, SPEC, labels_known=False).scores
    assert scores.recovered == (True,) * 3


def test_what_an_attack_proved_is_scored_wherever_it_stands() -> None:
    """Reads beyond the client's number were cut off, certified ones among them: "not recovered", over a proof."""
    x = coarse(2, 0)
    offered = torch.cat([torch.rand(6, 3, 16, 16), x])
    certified = torch.tensor([False] * 6 + [True] * 2)
    found = evaluate(
        Reconstruction(offered, None, Status.CONVERGED, certified=certified), truth_of(x), SPEC, labels_known=False
    )
    assert found.scores.certified == 2
    assert found.scores.recovered == (True, True)
    assert found.order == (6, 7)


def test_a_part_of_a_picture_that_is_exact_singles_it_out() -> None:
    """The middle of every picture, exact, on black: identified 1 of 16 on CIFAR-10."""
    x = coarse(8, 0)
    read = torch.zeros_like(x)
    read[..., 4:12, 4:12] = x[..., 4:12, 4:12]
    scores = evaluate(Reconstruction(read, None, Status.CONVERGED), truth_of(x), SPEC, labels_known=False).scores
    assert sum(scores.identified) >= 7


def test_clients_who_hold_all_but_the_same_picture_are_no_strangers() -> None:
    """Reads of a slice of a scan were held against the slices beside it, were like those as well, and so were "chance":
    8 of 8 identified, "not recovered", and a gate on PSNR passed."""
    x = coarse(1, 0)
    frames = [
        Batch((x + 0.02 * torch.randn(x.shape, generator=torch.Generator().manual_seed(i))).clamp(0, 1), torch.zeros(1))
        for i in range(7)
    ]
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(3))
    blurred = (0.85 * x.mean((2, 3), keepdim=True) + 0.15 * x + 0.1 * noise).clamp(0, 1)
    seen = replace(truth_of(x), others=tuple(frames))
    found = evaluate(Reconstruction(blurred, None, Status.CONVERGED), seen, SPEC, labels_known=False)
    assert found.scores.identified == (True,)
    assert sum(found.controls.other_client.identified) <= 2
    alone = replace(seen, public=torch.cat([frame.inputs for frame in frames]))
    nobody = evaluate(Reconstruction(blurred, None, Status.CONVERGED), alone, SPEC, labels_known=False)
    assert nobody.controls.other_client is None


def test_a_part_of_a_record_that_is_exact_singles_it_out() -> None:
    """Three incomes to the cent among 27 flags that were guessed: by squared error the record was anybody's."""
    g = torch.Generator().manual_seed(3)
    x = torch.rand(200, 30, generator=g)
    x[:, 3:] = (x[:, 3:] > 0.5).float()
    own, strangers, public = x[:8], x[8:108], x[108:150]
    others = tuple(Batch(x[150 + 8 * i : 158 + 8 * i], torch.zeros(8)) for i in range(6))
    read = torch.cat([own[:, :3], (torch.rand(8, 27, generator=g) > 0.5).float()], 1)
    seen = Truth(Batch(own, torch.arange(8) % 4), strangers, public, others, class_prior(torch.arange(8) % 4, 4))
    found = evaluate(Reconstruction(read, None, Status.CONVERGED), seen, DataSpec((30,), 4), labels_known=False)
    assert sum(found.scores.identified) >= 6
    assert max(found.controls.other_client.identified) <= 2


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_whose_picture_it_is_is_told_by_what_a_layer_was_given(mode: str) -> None:
    """Though no picture came of it: of the client's own all, of other clients' none."""
    torch.manual_seed(1)
    inputs, labels = made(3)
    observation = observed(Block(72), inputs, labels, mode)
    read = bare(HiddenTensors.of(observation, 3).read(torch.Generator().manual_seed(0)))
    others = tuple(Batch(made(3, seed=seed)[0], labels) for seed in range(10, 20))
    strangers, public = made(30, seed=1)[0], made(9, seed=2)[0]
    t = Truth(Batch(inputs, labels), strangers, public, others, class_prior(labels, 4))
    assert any(one.certified for one in read.features)
    seen = evaluate(read, t, observation.task.data, labels_known=False, task=observation.task)
    assert seen.scores is not None
    assert seen.scores.identified == (True,) * 3
    assert seen.scores.psnr == (None,) * 3
    assert not any(seen.scores.recovered)
    assert seen.scores.layer
    strange = seen.controls.other_client
    assert strange is not None
    assert 5 * sum(strange.identified) < 3 * len(strange.identified)  # three reads, each one of 31 by chance
    wrong = replace(read, features=tuple(replace(f, maps=torch.rand_like(f.maps)) for f in read.features))
    guessed = evaluate(wrong, t, observation.task.data, labels_known=False, task=observation.task).scores
    assert guessed is None or sum(guessed.identified) <= 1
    shapeless = replace(read, features=tuple(replace(f, maps=f.maps[:, :1]) for f in read.features))
    assert evaluate(shapeless, t, observation.task.data, labels_known=False, task=observation.task).scores is None


WORDS = ("random Hadamard", "rotary angles", "coordinates of a sparse weight", "time, batch, channel")


@pytest.mark.parametrize("word", WORDS)
def test_what_a_layer_was_given_tells_it_however_another_is_written(word: str) -> None:
    torch.manual_seed(1)
    inputs, labels = made(3)
    net = Block(72)
    net.head = Spelled(POOLS["first"][word], net.head.weight.detach(), net.head.bias.detach())
    observation = observed(net, inputs, labels)
    read = bare(HiddenTensors.of(observation.view, 3).read(torch.Generator().manual_seed(0)))
    t = Truth(Batch(inputs, labels), made(30, seed=1)[0], made(9, seed=2)[0], (), class_prior(labels, 4))
    seen = evaluate(read, t, observation.task.data, labels_known=False, task=observation.task)
    assert seen.scores is not None
    assert seen.scores.identified == (True,) * 3
