"""Acceptance rows of the papers, measured anew: a small one of each here, one as published among the slow tests.

Tests named `kept` read files of results instead.
"""

from __future__ import annotations

import os
import statistics
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from reproduce.ci_net.items import CI_NET  # noqa: E402
from reproduce.ci_net.runs import Target as InversionTarget  # noqa: E402
from reproduce.ci_net.runs import scores  # noqa: E402
from reproduce.inverting_gradients.demonstrations import proposition31  # noqa: E402
from reproduce.item import Inputs  # noqa: E402
from reproduce.mkor.mnist import NETWORKS, attacked, batches_of, observed  # noqa: E402
from reproduce.mkor.mnist import UNDEFENDED as MKOR_UNDEFENDED  # noqa: E402
from reproduce.mkor.scoring import paper_scores  # noqa: E402
from reproduce.qian_hansen.data import cifar, ecg  # noqa: E402
from reproduce.qian_hansen.networks import one_convolution, one_hidden_layer  # noqa: E402
from reproduce.qian_hansen.runs import PHOTO, quasi_newton  # noqa: E402
from reproduce.qian_hansen.trials import double, network, score  # noqa: E402
from reproduce.rog.ablations import SMALL  # noqa: E402
from reproduce.rog.runs import ceiling as ceiling_of  # noqa: E402

from leakgauge.attacks.recipes import inverting_gradients, qian_hansen, rog  # noqa: E402
from leakgauge.data import Parquet  # noqa: E402
from leakgauge.draws import Draws  # noqa: E402
from leakgauge.metrics import PSNR  # noqa: E402
from leakgauge.servers.mkor import MKOR, NLLRaw  # noqa: E402
from leakgauge.task import DataSpec  # noqa: E402
from reproduce import labels, lenet  # noqa: E402

DATA = Path(os.environ.get("LEAKGAUGE_SHARED", ROOT.parent / "shared")) / "data"

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"{DATA} is not here")


def test_mkor_reads_a_hundred_digits_as_published() -> None:
    """Table 2, LeNet5, one batch of each seed: SSIM .27, PSNR 12.8 dB."""
    source = Parquet(path=str(DATA / "mnist-test.parquet"), channels=1)
    found = []
    for seed in range(3):
        server = MKOR(taps=NETWORKS[0].taps(0.0), loss=NLLRaw())
        batch = batches_of(source, seed)[0]
        seen = observed(NETWORKS[0], server, MKOR_UNDEFENDED.defense["LeNet5"], batch, seed, labels=False, adapts=False)
        found.append(paper_scores(attacked(seen, seen.knowledge.crafting, seed), batch))
    assert statistics.fmean(f["avg SSIM"] for f in found) == pytest.approx(0.27, abs=0.03)
    assert statistics.fmean(f["avg PSNR"] for f in found) == pytest.approx(12.8, abs=0.4)


def test_one_row_of_a_gradient_is_the_picture_where_its_unit_is_active() -> None:
    """Inverting Gradients, Proposition 3.1."""
    rows = [r for r in proposition31(Inputs(DATA, True, lambda _: None)) if r.metric == "PSNR"]
    psnr = {row.attack: statistics.fmean(v for values in row.per_image for v in values) for row in rows}
    assert psnr["row of an active unit"] > 100
    assert max(psnr["row of an inactive unit"], psnr["row of a unit active for both"]) < 20


def test_an_ecg_of_eight_units_is_found() -> None:
    """Qian and Hansen, Figure 1, by a line search."""
    task = network(partial(one_hidden_layer, classes=5, shape=(1, 256), units=8), DataSpec((1, 256), 5), 0)
    assert score(task, double(ecg()), qian_hansen(weight=0.0, minimiser=quasi_newton(300)), 0).l1[0] < 1e-3


@pytest.mark.slow
def test_twelve_filters_fix_a_photo_and_eight_do_not() -> None:
    """Qian and Hansen, Table 6f."""
    for filters, exact in ((8, False), (12, True)):
        task = network(partial(one_convolution, classes=100, filters=filters), PHOTO, 1)
        found = score(task, double(cifar(DATA, 1)), qian_hansen(weight=0.0, minimiser=quasi_newton(2000)), 1)
        assert (found.l1[0] < 1.0) == exact


@pytest.mark.slow
def test_rog_comes_near_what_a_quarter_of_the_resolution_can_show() -> None:
    """32 px, batch 4, one step: within 2.5 dB of the truth at that resolution, 4 dB above grey."""
    batch = SMALL.batch(DATA)
    found = rog().reconstruct(SMALL.observe(batch, 1), Draws(1).generator("attack"))
    canvas = rog().canvas
    assert found.inputs is not None
    ours, ceiling, grey = (
        float(PSNR()(x.clamp(0, 1), batch.inputs).mean())
        for x in (
            found.inputs,
            ceiling_of(canvas, batch.inputs, SMALL.data),
            torch.full_like(batch.inputs, 0.5),
        )
    )
    assert ours > ceiling - 2.5
    assert ours > grey + 4


@pytest.mark.slow
def test_inverting_gradients_on_lenet_with_and_without_total_variation() -> None:
    """Table 1's 18 dB on four images that its kept row has not, and what the prior is worth there."""
    source = Parquet(path=str(DATA / "cifar10-test.parquet"))
    means = [
        statistics.fmean(
            v
            for image in lenet.sweep(
                "recomputed", inverting_gradients(tv=tv, steps=2400), source, range(20, 24), seeds=(5,)
            ).per_image
            for v in image
        )
        for tv in (1e-2, 0.0)
    ]
    assert means[0] > 17
    assert means[0] > means[1] + 3


@pytest.mark.slow
def test_ci_net_in_six_hundred_steps() -> None:
    """The reduced Table 1: SSIM one to one at least .6, on a weight seed that no kept row has."""
    target = InversionTarget()
    batch = target.batch(DATA)
    _, frames = CI_NET.run(target.observe(batch, 7), 7, (600,))
    assert statistics.fmean(scores(frames[600], batch, DATA)["SSIM, one to one"]) > 0.6


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("lenet", 0.8), ("convnet-16", 0.95)])
def test_labels_are_counted_under_local_steps_of_two(name: str, least: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """FedAvg in minibatches of two, eight images of four classes: on clients that no kept row has."""
    monkeypatch.setattr(labels, "SEEDS", range(4000, 4010))
    row = labels.measure(Parquet(path=str(DATA / "cifar10-test.parquet")), name, "fedavg-4-steps")
    assert statistics.fmean(v for values in row.per_image for v in values) >= least
