"""What is seen before any attack: each rule fires where it must, and not beside it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from leakgauge.cli import main
from leakgauge.observation import Reconstruction, Status
from leakgauge.resolve import resolve_defense
from leakgauge.risk.jacobian import gradient_rank
from leakgauge.risk.lint import SEARCHED, SENT, UNSENT, LintFinding, LintSeverity, lint_update
from leakgauge.study import lint
from leakgauge.study.lint import lint_plan
from leakgauge.study.plan import Plan, resolve_plan
from leakgauge.update import Update, UpdateHeader, UpdateKind


def update_of(net: nn.Module, inputs: torch.Tensor, *, count: int | None = None, buffers: bool = False) -> Update:
    """The gradient of a mean cross-entropy."""
    labels = torch.arange(len(inputs)) % 3
    nn.functional.cross_entropy(net(inputs), labels).backward()
    tensors = {n: p.grad.detach() for n, p in net.named_parameters() if p.grad is not None}
    kept = {n: b.clone() for n, b in net.named_buffers()} if buffers else None
    return Update(tensors, UpdateHeader(UpdateKind.GRADIENT, count), kept)


def mlp(bias: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 20, bias=bias), nn.Sigmoid(), nn.Linear(20, 3))


def rules(found: list[LintFinding]) -> dict[str, LintSeverity]:
    return {f.rule: f.severity for f in found}


def test_one_example_behind_a_biased_layer_is_an_exact_read() -> None:
    inputs = torch.rand(1, 12)
    update = update_of(mlp(), inputs, count=1)
    found = list(lint_update(update, "u"))
    reads = [f for f in found if f.rule == "input-of-biased-layer"]
    assert [f.severity for f in reads] == [LintSeverity.HIGH, LintSeverity.MEDIUM]  # the input, and features
    ratio = update.tensors["0.weight"] / update.tensors["0.bias"][:, None]
    assert torch.allclose(ratio, inputs.expand(20, 12), atol=1e-4)
    assert rules(found)["exact-count"] is LintSeverity.MEDIUM


@pytest.mark.parametrize("turned", [False, True])
def test_a_bias_is_known_by_its_values(turned: bool) -> None:
    update = update_of(mlp(), torch.rand(1, 12))
    first = update.tensors["0.weight"]
    named = {"w": first.T if turned else first, "b": -3 * update.tensors["0.bias"]}
    found = next(f for f in lint_update(replace(update, tensors=named), "u") if f.rule == "input-of-biased-layer")
    assert "w is one outer product with b" in found.evidence
    assert "12 numbers" in found.evidence


@pytest.mark.parametrize("examples", [1, 2, 5])
def test_rank_is_a_count_from_below(examples: int) -> None:
    update = update_of(mlp(), torch.rand(examples, 12))
    (found,) = [f for f in lint_update(update, "u") if f.rule == "rank-counts-examples"]
    assert f"rank {examples} of 12" in found.evidence
    assert any(f.rule == "input-of-biased-layer" for f in lint_update(update, "u")) == (examples == 1)


def test_noise_and_missing_biases_are_no_exact_read() -> None:
    clear = update_of(mlp(bias=False), torch.rand(1, 12))
    assert rules(list(lint_update(clear, "u")))["input-of-biased-layer"] is LintSeverity.MEDIUM  # only the second layer
    noisy = {
        n: t + 1e-3 * t.std() * torch.randn_like(t) for n, t in update_of(mlp(), torch.rand(1, 12)).tensors.items()
    }
    assert not list(lint_update(Update(noisy, clear.header), "u"))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_ranks_do_not_depend_on_scale_or_type(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    low = torch.randn(30, 3, dtype=torch.float64) @ torch.randn(3, 50, dtype=torch.float64)
    for scale in (1.0, 1e-3):
        assert gradient_rank((low * scale).to(dtype)) in ((3,) if dtype is torch.float64 else range(3, 31))
    assert gradient_rank((torch.randn(30, 1) @ torch.randn(1, 50)).to(torch.float32)) == 1
    assert gradient_rank(torch.zeros(3, 4)) == 0


@pytest.mark.parametrize(("examples", "noise"), [(1, 0.0), (3, 0.0), (3, 1e-2)])
@pytest.mark.parametrize("turned", [False, True])
def test_a_rank_is_that_of_the_singular_values(examples: int, noise: float, turned: bool) -> None:
    g = torch.Generator().manual_seed(2)
    large = torch.randn(300, examples, generator=g) @ torch.randn(examples, 40, generator=g)
    large += noise * torch.randn(300, 40, generator=g)
    large = large.T if turned else large
    values = torch.linalg.svdvals(large.double())
    counted = int((values > 300 * torch.finfo(large.dtype).eps * values[0]).sum())
    assert gradient_rank(large) == counted == (40 if noise else examples)


ROUGH = [{"sign": {}}, {"qsgd": {"levels": 4}}, {"quantise": {"levels": 4}}, {"topk": {"keep": 0.1}}]


@pytest.mark.parametrize("defense", ROUGH)
def test_rough_values_count_nobody(defense: object) -> None:
    """Signs of four records had "rank 6 of 10: at least so many examples", and inputs of ±1 that were none."""
    found = resolve_defense(defense, "defense").value
    for examples in (1, 4):
        update = update_of(mlp(), torch.rand(examples, 12))
        sent = found.on_update(update.tensors, torch.Generator().manual_seed(0))
        rank = rules(list(lint_update(Update(sent, update.header), "u")))
        assert not {"rank-counts-examples", "input-of-biased-layer"} & set(rank), (defense, examples)
    named = {f.rule for f in lint_plan(plan(defenses=[defense], model={"mlp": {"hidden": [6]}}))}
    assert not {"rank-counts-examples", "input-of-biased-layer"} & named


def test_few_levels_of_an_honest_gradient_are_no_rounding() -> None:
    """One record of flags before any training: soft-max of equal logits, so two magnitudes in all."""
    net = nn.Sequential(nn.Linear(12, 3))
    nn.init.zeros_(net[0].weight)
    nn.init.zeros_(net[0].bias)
    update = update_of(net, (torch.arange(12.0)[None] % 3 == 0).float(), count=1)
    assert rules(list(lint_update(update, "u")))["input-of-biased-layer"] is LintSeverity.HIGH


def test_a_head_of_two_classes_is_one_outer_product_whatever_the_batch() -> None:
    """ "0.weight is one outer product with 0.bias: what entered this layer is the ratio", of five records."""
    torch.manual_seed(0)
    tensors = {}
    for count in (None, 1):
        net = nn.Sequential(nn.Linear(12, 2))
        inputs = torch.rand(count or 5, 12)
        nn.functional.cross_entropy(net(inputs), torch.arange(len(inputs)) % 2).backward()
        tensors = {n: p.grad for n, p in net.named_parameters() if p.grad is not None}
        found = rules(list(lint_update(Update(tensors, UpdateHeader(UpdateKind.GRADIENT, count)), "u")))
        assert ("input-of-biased-layer" in found) == (count == 1)


def test_the_rows_of_an_embedding_are_the_tokens() -> None:
    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(100, 8)
            self.head = nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.head(self.embed(x).mean(1))
            return out

    tokens = torch.tensor([[3, 17, 17, 42], [5, 3, 99, 0]])
    (found,) = [f for f in lint_update(update_of(Text(), tokens), "u") if f.rule == "tokens-of-embedding"]
    assert "6 of 100 rows of embed.weight moved" in found.evidence
    assert "(0, 3, 5, 17, 42, 99)" in found.evidence


def test_batchnorm_statistics_in_the_reply() -> None:
    net = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    found = rules(list(lint_update(update_of(net, torch.rand(4, 12), buffers=True), "u")))
    assert found["batchnorm-statistics"] is LintSeverity.MEDIUM
    assert "batchnorm-statistics" not in rules(list(lint_update(update_of(net, torch.rand(4, 12)), "u")))


@pytest.mark.parametrize(
    ("mode", "knows", "rule"),
    [("train", ["buffers"], SENT), ("train", [], UNSENT), ("eval", ["buffers"], None), ("eval", [], None)],
)
def test_a_plan_says_what_it_takes_for_granted_of_statistics(mode: str, knows: list[str], rule: str | None) -> None:
    """With BatchNorm in train mode and no word on buffers, nothing was said."""
    data = {"source": "samples", "size": 16, "batch": 2, "batches": 1}
    found = list(lint_plan(plan(model="study.test_gate:Normed", mode=mode, knows=knows, data=data)))
    told = [f for f in found if f.rule in (SENT, UNSENT)]
    assert [f.rule for f in told] == ([rule] if rule else [])
    if rule:
        assert told[0].severity is LintSeverity.MEDIUM
        assert "running statistics of norm" in told[0].evidence


def plan(**keys: object) -> Plan:
    data = {"source": "samples", "size": 8, "batch": 1, "batches": 1}
    return resolve_plan({"model": {"mlp": {"hidden": [16]}}, "data": data, **keys})


def test_a_plan_is_read_by_the_reads_that_certify_themselves() -> None:
    found = list(lint_plan(plan(defenses=["none", {"noise": {"relative": 0.1}}])))
    (read,) = [f for f in found if f.rule == "exact-read"]
    assert (read.severity, "fedsgd, none" in read.where) == (LintSeverity.HIGH, True)
    assert "reads 1 of 1 examples exactly" in read.evidence
    assert rules(found)["batch-of-one"] is LintSeverity.MEDIUM


def test_the_reads_of_a_plan_do_not_depend_on_how_its_model_is_written() -> None:
    """The same layer as a convolution over all of its input was read by none of them."""
    net = nn.Sequential(nn.Conv2d(3, 16, 8), nn.ReLU(), nn.Flatten(), nn.Linear(16, 10))
    (read,) = [f for f in lint_plan(plan(model=net)) if f.rule == "exact-read"]
    assert "reads 1 of 1 examples exactly" in read.evidence


@pytest.mark.parametrize("crafted", [True, False])
def test_bins_of_a_first_layer_are_found_whoever_shares_one(crafted: bool) -> None:
    """Nothing was said of an imprint: what shares a bin is no proof."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 12), nn.ReLU(), nn.Linear(12, 10))
    if crafted:
        net[1].weight.data.fill_(1 / 192)
        net[1].bias.data.copy_(-torch.linspace(-2, 2, 12))
        net[3].weight.data.copy_(torch.randn(10, 1).expand(10, 12))
    data = {"source": "samples", "size": 8, "batch": 8, "batches": 1}
    found = [f for f in lint_plan(plan(model=net, data=data)) if f.rule == "bins-of-a-first-layer"]
    assert [f.severity for f in found] == [LintSeverity.HIGH] * crafted


@dataclass(frozen=True)
class Ends:
    """A read that raises, or is not done in time."""

    status: Status | None

    def reconstruct(self, observation: object, generator: object, **options: object) -> Reconstruction:
        if self.status is None:
            raise RuntimeError("no such layer")
        return Reconstruction(None, None, self.status)


class ReadsOne:
    """A read that certifies one example of two."""

    def reconstruct(self, observation: object, generator: object, **options: object) -> Reconstruction:
        labels, sure = torch.zeros(2, dtype=torch.long), torch.tensor([True, False])
        return Reconstruction(torch.zeros(2, 3, 8, 8), labels, Status.CONVERGED, certified=sure)


def test_some_examples_of_a_batch_are_an_exact_read_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven of eight that were certified were no finding."""
    monkeypatch.setattr(lint, "READS", {"peeling": ReadsOne()})
    found = list(lint_plan(plan(data={"source": "samples", "size": 8, "batch": 2, "batches": 1})))
    (read,) = [f for f in found if f.rule == "exact-read"]
    assert "peeling reads 1 of 2 examples exactly" in read.evidence


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (None, "raised RuntimeError: no such layer"),
        (Status.TIME_LIMIT, "had not ended after 20 s"),
        (Status.FAILED, ""),
    ],
)
def test_a_read_that_comes_to_no_end_is_not_silent(
    monkeypatch: pytest.MonkeyPatch, status: Status | None, said: str
) -> None:
    monkeypatch.setattr(lint, "READS", {"mine": Ends(status)})
    told = [f.evidence for f in lint_plan(plan()) if f.rule == "not-read"]
    assert told == ([f"mine {said}"] if said else [])


CONFIGURED = [
    ([{"noise": {"sigma": 0.1}}, {"clip": {"norm": 1.0}}], "noise-before-clip"),
    ([{"clip": {"norm": 1.0}}, {"noise": {"sigma": 0.01}}], "little-noise"),
    ({"client-dp": {"norm": 1.0, "noise_multiplier": 0.1}}, "little-noise"),
    ({"noise": {"relative": 0.1}}, "no-guarantee"),
    ({"clip": {"norm": 1.0}}, "no-guarantee"),
    ({"client-dp": {"norm": 1.0, "noise_multiplier": 2.0}}, None),
    ([{"clip": {"norm": 1.0}}, {"noise": {"sigma": 2.0}}], None),
    ("none", None),
]


@pytest.mark.parametrize(("defense", "rule"), CONFIGURED, ids=[str(d) for d, _ in CONFIGURED])
def test_clip_and_noise_that_do_not_do_what_they_are_for(defense: object, rule: str | None) -> None:
    named = {"noise-before-clip", "little-noise", "no-guarantee"}
    found = rules(
        list(lint_plan(plan(defenses=[defense], data={"source": "samples", "size": 8, "batch": 2, "batches": 1})))
    )
    assert named & set(found) == ({rule} if rule else set())


LOCAL = {"fedavg": {"epochs": 5, "batch_size": 1, "lr": 0.1}}
STEPS = [
    ({"dp-sgd": {"norm": 1.0, "noise_multiplier": 1.0}}, "little-noise"),
    ([{"clip-examples": {"norm": 1.0}}, {"noise": {"sigma": 2.0}}], "no-guarantee"),
]


@pytest.mark.parametrize(("defense", "rule"), STEPS, ids=[str(d) for d, _ in STEPS])
def test_noise_that_is_enough_for_one_gradient_may_not_be_for_local_steps(defense: object, rule: str) -> None:
    data = {"source": "samples", "size": 8, "batch": 2, "batches": 1}
    found = [rules(list(lint_plan(plan(defenses=[defense], clients=[c], data=data)))) for c in ("fedsgd", LOCAL)]
    assert rule not in found[0]
    assert rule in found[1]


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["lint", *words])
    return result.exit_code, " ".join(result.output.split())


def test_the_command(tmp_path: Path) -> None:
    update_of(mlp(), torch.rand(1, 12), count=1).save(tmp_path / "u.safetensors")
    (tmp_path / "weights.safetensors").write_bytes(b"not an update")
    kept = tmp_path / "f.json"
    code, text = run(str(tmp_path), "--json", str(kept))
    assert code == 1
    assert "high: input-of-biased-layer u.safetensors: 0.weight is one outer product with 0.bias" in text
    assert "No finding means that these rules saw nothing, no more." in text
    assert {f["severity"] for f in json.loads(kept.read_text())["findings"]} == {"high", "medium", "low"}
    (tmp_path / "plan.yaml").write_text(
        "model: {mlp: {hidden: [16]}}\ndata: {source: samples, size: 8, batch: 1}\ndefenses: [{client-dp: "
        "{norm: 1, noise_multiplier: 1}}]\nknows: []\n"
    )
    code, text = run(str(tmp_path / "plan.yaml"))
    assert (code, "0 high" in text) == (0, True), text


@pytest.mark.parametrize("name", ["none", "weights.safetensors", "empty", "app.py"])
def test_bad_input_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "app.py").write_text("raise SystemExit('was run')")
    (tmp_path / "weights.safetensors").write_bytes(b"not an update")
    code, text = run(str(tmp_path / name))
    assert (code, text.startswith("leakgauge: ")) == (2, True)


def test_a_plan_that_rests_on_searches_says_so_before_it_runs() -> None:
    """Seventeen minutes later it could only end without an answer. A perceptron's examples are read."""
    data = {"source": "samples", "size": 16, "batch": 8, "batches": 1}
    deep = rules(list(lint_plan(resolve_plan({"model": {"resnet20": {"width": 4}}, "data": data}))))
    assert deep[SEARCHED] is LintSeverity.LOW
    assert not {"hidden-inputs", "exact-read"} & deep.keys()
    wide = rules(list(lint_plan(resolve_plan({"model": {"resnet20": {"width": 64}}, "data": data | {"batch": 1}}))))
    assert "hidden-inputs" in wide
    assert SEARCHED not in wide
