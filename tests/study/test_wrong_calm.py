"""Results that reassured and were wrong, each found by trying; what each said before is in its docstring."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from click.testing import CliRunner
from torch import Tensor, nn

from leakgauge.cli import main
from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Compute
from leakgauge.data import InMemory, Tokens
from leakgauge.data.source import check
from leakgauge.defenses import Defense, NoDefense
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.metrics.line_up import twins
from leakgauge.observation import Reconstruction, Status
from leakgauge.risk.lint import LintFinding, LintSeverity
from leakgauge.study.dealt import first_holders
from leakgauge.study.deciding.decision import Answer, DecisionScope, decide, label_words
from leakgauge.study.deciding.facts import signed
from leakgauge.study.document import summary, verdict_of
from leakgauge.study.evaluate import Truth, class_prior, evaluate
from leakgauge.study.explaining.causes import Evidence, explain
from leakgauge.study.explaining.setting import Setting
from leakgauge.study.grammar import GateConfig, parse
from leakgauge.study.judging.cut_short import CutShort
from leakgauge.study.judging.flags import BrokenElsewhere, NoGradient, Uninformed
from leakgauge.study.judging.gate import GateResult
from leakgauge.study.judging.records import Role, Trial
from leakgauge.study.judging.results import Finding, Level
from leakgauge.study.judging.texts import TokenLeak
from leakgauge.study.judging.verdict import verdict
from leakgauge.study.pipeline.lint import lint_plan
from leakgauge.study.pipeline.linted import LINT, findings_text, read_lint
from leakgauge.study.store import Store
from leakgauge.study.tables import PlannedAudit
from leakgauge.study.trial import run_trial
from leakgauge.study.written import resolve_plan
from leakgauge.task import Batch, DataSpec, Task
from leakgauge.tensors import Tensors
from study.plans import tiny
from study.trials import POWER, trial

SPEC = DataSpec((3, 16, 16), 4)
LIMIT = GateConfig.model_validate({"identified": {"max": 0.2}})


def judged(trials: Sequence[Trial], **gate: Any) -> GateResult:
    return verdict(trials, GateConfig.model_validate(gate or {"identified": {"max": 0.2}})).gate


def row_of(trials: Sequence[Trial]) -> Finding:
    return next(f for f in verdict(trials, None).findings if f.scenario.defense == "d")


def quiet(n: int, **changes: Any) -> list[Trial]:
    return [trial(i, 10.0, defense="d", **changes) for i in range(n)]


def pictures(n: int, seed: int, side: int = 16) -> Tensor:
    """Coarse patches with fine structure."""
    g = torch.Generator().manual_seed(seed)
    coarse = torch.nn.functional.interpolate(torch.rand((n, 3, 4, 4), generator=g), size=(side, side))
    return (0.8 * coarse + 0.2 * torch.rand((n, 3, side, side), generator=g)).clamp(0, 1)


def truth(x: Tensor, gallery: Tensor | None = None) -> Truth:
    others = tuple(Batch(pictures(len(x), 50 + i), torch.zeros(len(x), dtype=torch.long)) for i in range(5))
    batch = Batch(x, torch.arange(len(x)) % 4)
    lent = pictures(60, 1) if gallery is None else gallery
    return Truth(batch, lent, pictures(30, 2), others, class_prior(torch.arange(8) % 4, 4))


@dataclass(frozen=True)
class Refuses:
    """Searches where there is no defence, and stumbles over one."""

    def reconstruct(self, observation: Any, generator: torch.Generator, **options: Any) -> Reconstruction:
        raise InputError("mine", "an index is out of range", "no idea")


def test_an_input_error_inside_an_attack_is_a_failure() -> None:
    """It became `not_applicable`, which no gate fails: an attack that broke on the defence was left out of account."""
    plan = resolve_plan(tiny(attacks=["study.test_wrong_calm:Refuses"], defenses=["none"]))
    record = run_trial(plan, plan.trials()[0], compute=Compute()).record
    assert record["status"] == "failed"
    assert "an index is out of range" in record["message"]


def test_clients_that_an_attack_does_not_apply_to_are_not_cleared() -> None:
    """ "Not recovered", and a passed gate, on the 20 of 60 clients that the attack could read at all."""
    skipped = [trial(i, None, defense="d", status="not_applicable") for i in range(20, 60)]
    assert row_of([*POWER, *quiet(20), *skipped]).level is Level.INCONCLUSIVE
    assert judged([*POWER, *quiet(20), *skipped]).passed is False
    assert judged([*POWER, *quiet(20)]).passed is True


@pytest.mark.parametrize(("defense", "flagged"), [("instahide", True), ("transform", False)])
def test_a_defence_that_is_broken_by_more_than_one_update_does_not_pass(defense: str, flagged: bool) -> None:
    """InstaHide passed where one update was not solved for its encodings: published attacks have many."""
    data = {"source": "samples", "size": 16, "batch": 2, "batches": 1, "normalise": False}
    plan = resolve_plan(tiny(defenses=[defense], data=data))
    record = run_trial(plan, next(key for key in plan.trials() if not key.control), compute=Compute()).record
    by = Trial.from_json(record).scenario.broken_by
    rows = [replace(t, scenario=replace(t.scenario, broken_by=by)) for t in quiet(20)]
    assert any(isinstance(flag, BrokenElsewhere) for flag in row_of([*POWER, *rows]).flags) == flagged
    assert judged([*POWER, *rows]).passed is not flagged


def test_a_gate_without_a_limit_is_refused() -> None:
    """`gate: {}` passed whatever was not outright exposed, partly identified clients too."""
    with pytest.raises(InputError, match="name a limit"):
        parse(tiny(gate={}))


@pytest.mark.parametrize("known", [False, True])
def test_a_limit_on_labels_that_nobody_read_is_not_kept(known: bool) -> None:
    """`label_f1: {max: 0.1}` passed where no attack looked at labels, or where the plan gave them away."""
    rows = quiet(20, **({"f1": 1.0, "known": True} if known else {}))
    result = judged([*POWER, *rows], label_f1={"max": 0.1})
    assert result.passed is False
    assert "its limit on them says nothing" in result.reasons[0].text


@pytest.mark.parametrize("how", ["naive", "untold"])
def test_an_attacker_who_does_not_know_the_defence_clears_nothing(how: str) -> None:
    """A gate passed because the only attacker tried took the defended update for an undefended one."""
    rows = [*POWER, *quiet(20)]
    rows = [replace(t, role=Role.NAIVE) for t in rows] if how == "naive" else rows
    if how == "untold":
        rows = [replace(t, scenario=replace(t.scenario, knowledge=("example_count",))) for t in rows]
    result = judged(rows)
    assert result.passed is False
    assert "hiding it is no defence" in result.reasons[0].text


def test_a_search_that_the_clock_ended_early_is_flagged() -> None:
    """A defence that is slow to simulate looked like one that protects: a tenth of the search in the same time."""
    slow = [replace(t, status="time_limit", gradient_evaluations=10) for t in quiet(20)]
    control = [replace(t, gradient_evaluations=100) for t in POWER]
    assert any(isinstance(flag, CutShort) for flag in row_of([*control, *slow]).flags)
    assert judged([*control, *slow]).passed is False
    even = [replace(t, status="time_limit", gradient_evaluations=90) for t in quiet(20)]
    assert judged([*control, *even]).passed is True


@pytest.mark.parametrize("status", ["time_limit", "out_of_budget", "out_of_steps"])
@pytest.mark.parametrize(("spent", "batch", "doubted"), [(6, 1, True), (300, 1, False), (300, 2, True)])
def test_controls_that_were_read_show_no_search_s_power(status: str, spent: int, batch: int, doubted: bool) -> None:
    """Random-k stood on six evaluations, "not recovered" with no flag: the controls had been read exactly, without any.
    With 150 one of six came back."""
    rows = [trial(i, [9.0] * batch, defense="d", status=status) for i in range(20)]
    rows = [replace(t, gradient_evaluations=spent) for t in rows]
    both = [True] * batch
    read = [trial(i, [300.0] * batch, identified=both, control=True, status="exact", certified=batch) for i in range(5)]
    read = [replace(t, gradient_evaluations=0) for t in read]
    assert any(isinstance(flag, CutShort) for flag in row_of([*read, *rows]).flags) is doubted
    assert judged([*read, *rows]).passed is not doubted
    # Beside one that was read, a control that was searched for says how much a search takes.
    searched = replace(read[4], status="converged", gradient_evaluations=1000)
    searched = replace(searched, scores=replace(rows[0].scores, recovered=both))
    assert any(isinstance(flag, CutShort) for flag in row_of([*read[:4], searched, *rows]).flags)


def test_one_client_many_times_is_one_client() -> None:
    """Sixty clients with one and the same record supported a limit of .05, as sixty strangers would."""
    x = torch.rand(1, 3, 8, 8).repeat(20, 1, 1, 1)
    x[10:] = torch.rand(10, 3, 8, 8)
    plan = resolve_plan(
        tiny(
            model={"mlp": {"hidden": [4]}},
            data={"source": InMemory(inputs=x, labels=torch.arange(20) % 2), "batch": 1, "batches": 12},
            attacks=["closed-form"],
            defenses=["none"],
            gallery=3,
        )
    )
    keys = [key for key in plan.trials() if not key.control]
    assert [plan.data.holder(key.batch) for key in keys] == [0] * 10 + [10, 11]
    trials = [Trial.from_json(run_trial(plan, key, compute=Compute()).record) for key in keys[8:]]
    assert verdict(trials, None).findings[0].clients == 3


def test_controls_of_one_picture_show_no_power() -> None:
    """Where a source had one picture to lend, five controls of it showed that the attack "works"."""
    one = Batch(torch.rand(4, 3, 8, 8), torch.zeros(4, dtype=torch.long))
    half = Batch(torch.cat([one.inputs[:2], torch.rand(2, 3, 8, 8)]), one.labels)
    other = Batch(torch.cat([one.inputs[3:], torch.rand(3, 3, 8, 8)]), one.labels)
    assert first_holders([one, one.take(torch.tensor([3, 2, 1, 0])), half, other]) == [0, 0, 0, 3]


def test_the_next_frame_of_a_film_is_no_stranger() -> None:
    """With a near copy of each picture in the line-up, a read at 24 dB "identified" nobody."""
    frames = pictures(3, 0)
    x, read = (
        (frames + noise * torch.randn(frames.shape, generator=torch.Generator().manual_seed(seed))).clamp(0, 1)
        for noise, seed in ((0.02, 9), (0.06, 8))
    )
    seen = truth(x, torch.cat([frames, pictures(40, 1)]))
    scores = evaluate(Reconstruction(read, None, Status.CONVERGED), seen, SPEC, labels_known=False).scores
    assert scores is not None
    assert scores.recovered == (True,) * 3


def test_what_an_attack_proved_is_scored_wherever_it_stands() -> None:
    """Reads beyond the client's number were cut off, certified ones among them: "not recovered", over a proof."""
    x = pictures(2, 0)
    offered = torch.cat([torch.rand(6, 3, 16, 16), x])
    certified = torch.tensor([False] * 6 + [True] * 2)
    found = evaluate(
        Reconstruction(offered, None, Status.CONVERGED, certified=certified), truth(x), SPEC, labels_known=False
    )
    assert found.scores is not None
    assert found.scores.certified == 2
    assert found.scores.recovered == (True, True)
    assert found.order == (6, 7)


def test_a_part_of_a_picture_that_is_exact_singles_it_out() -> None:
    """The middle of every picture, exact, on black: identified 1 of 16 on CIFAR-10."""
    x = pictures(8, 0)
    read = torch.zeros_like(x)
    read[..., 4:12, 4:12] = x[..., 4:12, 4:12]
    scores = evaluate(Reconstruction(read, None, Status.CONVERGED), truth(x), SPEC, labels_known=False).scores
    assert scores is not None
    assert sum(scores.identified) >= 7


class Pooled(nn.Module):
    """Its features hardly depend on the picture, as those of a deep network that was not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3, 2, 1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(3 + 0.1 * torch.relu(self.conv(x)).mean((2, 3)))
        return out


@pytest.mark.parametrize("right", [True, False])
def test_other_pictures_do_not_explain_a_captured_update(right: bool) -> None:
    """Any pictures with the round's labels explained 99.9 % of the update of a ConvNet on CIFAR-10, so a plan with
    wrong ones was believed, and the attack's true reads were held against the wrong originals: "not recovered"."""
    torch.manual_seed(0)
    task, labels = Task.of(Pooled(), SPEC), torch.tensor([0, 1])
    sent = client_update(task, FedSGD(), Batch(pictures(2, 0), labels), Draws(0))
    account = Setting(task, FedSGD(), NoDefense(), Batch(pictures(2, 0 if right else 7), labels))
    found = explain(account, sent, Draws(1), Evidence(pictures(32, 3), causes=False))
    assert found.fit.share > 0.95
    assert found.holds == right
    assert ("other pictures with the same labels explain as much" in found.sentence) != right


def test_an_exact_read_passes_no_gate_whatever_was_attacked() -> None:
    """The page said "No", a lint having read the examples exactly, over "not recovered", a passed gate and exit code 0:
    the plan's one attack was a search that missed them."""
    found = verdict([*POWER, *quiet(20)], LIMIT, "m: closed-form reads 1 of 1 examples exactly")
    assert found.level is Level.EXPOSED
    assert "can be read exactly" in found.headline[0]
    assert found.gate.passed is False
    assert decide(found, DecisionScope(LIMIT, 1, captured=False)).answer is Answer.NO


def test_a_gate_without_a_limit_on_it_does_not_pass_what_is_identified_beyond_chance() -> None:
    """A gate on PSNR alone passed clients of whom a quarter was singled out; the page said "No", the exit code 0."""
    partly = [trial(i, 10.0, defense="d", identified=i < 20, recovered=False) for i in range(80)]
    assert row_of([*POWER, *partly]).level is Level.PARTIAL
    result = judged([*POWER, *partly], psnr={"worst": 18})
    assert result.passed is False
    assert "has no limit on that" in result.reasons[0].text
    assert judged([*POWER, *partly], identified={"max": 0.5}).passed is True


def test_a_reader_of_labels_that_fails_without_a_defence_clears_none() -> None:
    """With a loss that it does not assume a reader scores F1 0 on anybody: "labels are read no better than by
    guessing", and a limit on labels held."""
    rows = quiet(40, f1=0.0, constant=0.25)
    blind = [trial(i, 30.0, identified=True, control=True, f1=0.0, constant=0.25) for i in range(5)]
    sighted = [trial(i, 30.0, identified=True, control=True, f1=1.0, constant=0.25) for i in range(5)]
    limits: dict[str, Any] = {"label_f1": {"max": 0.5}}
    assert judged([*blind, *rows], **limits).passed is False
    assert judged([*sighted, *rows], **limits).passed is True
    assert "fails on undefended controls" in label_words([row_of([*blind, *rows])])
    assert "no better than by guessing" in label_words([row_of([*sighted, *rows])])


@pytest.mark.parametrize("status", ["stopped", "out_of_budget", "out_of_steps"])
def test_a_search_that_ended_itself_early_is_flagged(status: str) -> None:
    """An attack that gave up after one evaluation wherever there was a defence cleared it."""
    control = [replace(t, gradient_evaluations=100) for t in POWER]
    rows = [replace(t, status=status, gradient_evaluations=1) for t in quiet(20)]
    assert any(isinstance(flag, CutShort) for flag in row_of([*control, *rows]).flags)
    assert judged([*control, *rows]).passed is False


def test_a_search_that_never_took_a_step_is_flagged() -> None:
    """ "Converged" at its first evaluation, where a defence left the objective flat: one point is no trace to judge."""
    rows = [replace(t, gradient_evaluations=1) for t in quiet(20, trace=((1, 0.5),))]
    assert any(isinstance(flag, NoGradient) for flag in row_of([*POWER, *rows]).flags)
    assert judged([*POWER, *rows]).passed is False


@dataclass(frozen=True)
class Secret(Defense):
    """Turns every tensor round, and gives its attackers nothing to undo that by."""

    def on_update(self, tensors: Tensors, generator: torch.Generator) -> Tensors:
        return {name: tensor.flatten().flip(0).view_as(tensor) for name, tensor in tensors.items()}


def test_a_mechanism_that_only_its_author_knows_clears_nothing() -> None:
    """A permutation by a fixed key, of a defence without an `attacker_view`: "not recovered", and a passed gate. Its
    attackers were said to know the defence, and knew nothing."""
    plan = resolve_plan(tiny(attacks=["closed-form"], defenses=["none", Secret(), [Secret(), {"topk": {"keep": 0.5}}]]))
    knowledge = {k.defense: run_trial(plan, k, compute=Compute()).record for k in plan.trials() if not k.control}
    told = {d: "defense" in record["scenario"]["knowledge"] for d, record in knowledge.items()}
    assert told == {0: True, 1: False, 2: False}
    hidden = [replace(t, scenario=replace(t.scenario, knowledge=("example_count",))) for t in quiet(20)]
    assert any(isinstance(flag, Uninformed) for flag in row_of([*POWER, *hidden]).flags)


def test_clients_who_hold_all_but_the_same_picture_are_no_strangers() -> None:
    """Reads of a slice of a scan were held against the slices beside it, were like those as well, and so were "chance":
    8 of 8 identified, "not recovered", and a gate on PSNR passed."""
    x = pictures(1, 0)
    frames = [
        Batch((x + 0.02 * torch.randn(x.shape, generator=torch.Generator().manual_seed(i))).clamp(0, 1), torch.zeros(1))
        for i in range(7)
    ]
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(3))
    blurred = (0.85 * x.mean((2, 3), keepdim=True) + 0.15 * x + 0.1 * noise).clamp(0, 1)
    seen = replace(truth(x), others=tuple(frames))
    found = evaluate(Reconstruction(blurred, None, Status.CONVERGED), seen, SPEC, labels_known=False)
    assert found.scores is not None
    assert found.scores.identified == (True,)
    assert found.controls.other_client is not None
    assert sum(found.controls.other_client.identified) <= 2
    alone = replace(seen, public=torch.cat([frame.inputs for frame in frames]))
    nobody = evaluate(Reconstruction(blurred, None, Status.CONVERGED), alone, SPEC, labels_known=False)
    assert nobody.controls.other_client is None


def test_without_strangers_nothing_is_cleared() -> None:
    """With nobody to compare with, chance was taken for certain, and identified clients for luck."""
    rows = [replace(t, controls=replace(t.controls, other_client=None)) for t in quiet(20)]
    assert row_of([*POWER, *rows]).level is Level.INCONCLUSIVE


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
    assert found.scores is not None
    assert found.controls.other_client is not None
    assert sum(found.scores.identified) >= 6
    assert max(found.controls.other_client.identified) <= 2


def test_a_blank_picture_is_refused() -> None:
    """The first slices of a scan are air: twenty such clients were "not recovered" by attacks that read all others."""
    x = pictures(40, 0)
    x[3] = torch.tensor([0.1, 0.5, 0.5])[:, None, None]
    data = {"source": InMemory(inputs=x, labels=torch.arange(40) % 4), "batch": 2, "batches": 3}
    with pytest.raises(InputError, match="one colour all over"):
        resolve_plan(tiny(data=data))
    resolve_plan(tiny(data=data | {"start": 4}))


def test_a_text_of_padding_alone_is_refused() -> None:
    """Its client counted among those that nothing came back from."""
    ids = torch.randint(1, 9, (40, 6), generator=torch.Generator().manual_seed(0))
    ids[2] = 0
    source = Tokens(inputs=ids, labels=torch.arange(40) % 4, words=[str(i) for i in range(9)], padding=0)
    with pytest.raises(InputError, match="text 3: has no token but padding"):
        check(source, range(4))
    check(source, range(2))


def test_a_lint_that_was_damaged_says_so(tmp_path: Path) -> None:
    """One bit in the name of a rule, and an exact read was none; with a bracket missing nothing had been found."""
    found = LintFinding("exact-read", LintSeverity.HIGH, "m", "closed-form reads 1 of 1 examples exactly", "a defence")
    file = tmp_path / LINT
    for text in (findings_text([found], "mine").replace("exact-read", "exact-reae"), "{"):
        file.write_text(text)
        with pytest.raises(InputError, match="cannot be read"):
            read_lint(tmp_path, "mine")
    file.write_text(findings_text([found], "mine"))
    assert read_lint(tmp_path, "mine") == [found]


def test_a_lint_that_is_gone_or_of_another_audit_clears_nothing(tmp_path: Path) -> None:
    """With `lint.json` removed, or that of a calm audit copied over it, an exact read was none: "not recovered"."""
    plan = tmp_path / "plan.yaml"
    plan.write_text(yaml.safe_dump(tiny(attacks=["closed-form"], defenses=["none"], gate={"identified": {"max": 0.5}})))
    words = ["audit", str(plan), "-o", str(tmp_path / "out"), "--workers", "1"]
    assert "exact-read" in CliRunner().invoke(main, words).output
    file = tmp_path / "out" / LINT
    kept = file.read_text()

    def judged_again() -> str:
        return CliRunner().invoke(main, ["gate", str(tmp_path / "out")]).output

    assert "lint:" not in judged_again()
    for text in (None, findings_text([], "another")):
        file.unlink(missing_ok=True)
        if text is not None:
            file.write_text(text)
        said = judged_again()
        assert "lint: lint.json is" in said
        assert said.endswith("gate failed\n")
    store = Store.open(tmp_path / "out")
    assert "not-run" in str(summary(store)["decision"])
    store.close()
    assert "exact-read" in CliRunner().invoke(main, words).output, "the same command reads the plan again"
    assert file.read_text() == kept


def test_a_report_of_an_unfinished_audit_is_no_clearance(tmp_path: Path) -> None:
    """`leakgauge report` said "No objection" of the trials that had run, where `leakgauge gate` said "unfinished"."""
    plan = resolve_plan(tiny(attacks=["closed-form"], gate={"identified": {"max": 0.5}}))
    asked = PlannedAudit(plan.digest, "a", plan.config, {}, {}, ["x", "y"], False)
    store = Store.create(tmp_path, asked)
    reasons = verdict_of(store).gate.reasons
    store.close()
    assert any("unfinished: 2 trials have not run" in reason.text for reason in reasons)


CALM = [*POWER, *quiet(80)]
STRANGE = [replace(t, controls=replace(t.controls, other_client=None)) for t in quiet(60)]


@pytest.mark.parametrize(
    ("trials", "gate"),
    [
        (CALM, {"identified": {"max": 0.05}}),
        (CALM, {"psnr": {"worst": 18}}),
        ([*POWER, *STRANGE], {"identified": {"max": 0.2}}),
        ([*POWER, *quiet(80), *quiet(80, attack="b")], {"identified": {"max": 0.2}}),
        ([*POWER, *quiet(3)], {"identified": {"max": 0.9}}),
        ([*POWER, *quiet(2)], {"psnr": {"worst": 18, "share": 0.9}}),
        ([*POWER, *quiet(80, f1=0.9)], {"identified": {"max": 0.2}}),
        ([*POWER, *quiet(80, f1=0.9)], {"identified": {"max": 0.2}, "label_f1": {"max": 1}}),
        ([*POWER, *quiet(80, trace=())], {"identified": {"max": 0.2}}),
        (
            [*POWER, *(trial(i, 10.0, defense="d", identified=i < 20, recovered=False) for i in range(80))],
            {"identified": {"max": 0.5}},
        ),
        ([*POWER, *quiet(79), trial(79, 30.0, defense="d", identified=True)], {"identified": {"max": 0.5}}),
    ],
)
def test_the_page_and_the_exit_code_say_the_same(trials: list[Trial], gate: dict[str, Any]) -> None:
    """Six of these said "No" or "Not yet" on the page, over a gate that passed."""
    limits = GateConfig.model_validate(gate)
    found = verdict(trials, limits)
    decision = decide(found, DecisionScope(limits, 1, captured=False))
    assert (decision.answer is Answer.NO_OBJECTION) == bool(found.gate.passed)
    if any(row.level is Level.PARTIAL for row in found.findings):
        assert "20 of 80 images are singled out, more than by chance, which the gate permits" in decision.reason


def test_reads_without_a_search_pass_no_gate() -> None:
    """A closed form that a defence stops, and nothing else: "none of the attacks tried recovered an image", exit 0."""
    reads = [replace(t, trace=(), gradient_evaluations=0) for t in quiet(60)]
    result = judged([*POWER, *reads])
    assert result.passed is False
    assert "only reads without a search were tried" in result.reasons[0].text
    assert result.reasons[0].text.endswith("add auto to attacks")
    idle = [trial(i, None, defense="d", attack="auto", status="not_applicable", role=Role.STRONGEST) for i in range(60)]
    named = judged([*POWER, *reads, *idle]).reasons[0].text
    assert named.endswith("a search may find what they miss: auto did not apply (it broke)")
    control = [replace(t, attack="b", trace=()) for t in POWER]
    assert judged([*POWER, *control, *reads, *quiet(60)]).passed is True
    assert judged([*POWER, *(replace(t, role=Role.STRONGEST) for t in reads)]).passed is True


def test_the_frames_of_one_film_are_one_client() -> None:
    """Sixty neighbouring frames as sixty clients supported a limit of .05; each differs from the last alone."""
    g = torch.Generator().manual_seed(0)
    drift = torch.randn(60, 3, 16, 16, generator=g).cumsum(0)
    film = (pictures(1, 0) + 0.02 * drift).clamp(0, 1)
    plan = resolve_plan(
        tiny(
            data={"source": InMemory(inputs=torch.cat([pictures(20, 4), film]), labels=torch.arange(80) % 4)}
            | {"batch": 1, "batches": 70}
        )
    )
    clients = [plan.client(key) for key in plan.trials() if not key.control]
    assert len({*clients}) == 21
    assert not bool(twins(film[:1], film[-1:]).any()), "the last frame is another picture than the first"
    pairs = [Batch(film[i : i + 2], torch.zeros(2)) for i in range(0, 6, 2)]
    assert first_holders(pairs) == [0, 0, 0]
    numbers = torch.rand(6, 2, 12, generator=g)
    assert first_holders([Batch(x, torch.zeros(2)) for x in numbers]) == list(range(6))


class Normed(nn.Module):
    """BatchNorm over the pixels beside a branch that is a little of everything."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm2d(3), nn.Linear(768, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.sigmoid(self.norm(x)).flatten(1))
        return out


@pytest.mark.parametrize("knows", [["buffers", "defense"], ["defense"]])
def test_statistics_that_travel_uncovered_pass_no_gate(tmp_path: Path, knows: list[str]) -> None:
    """Noise covered the gradient, and "No objection" the update; the running statistics beside it, less the broadcast
    ones, were 16 of 16 pictures as thumbnails. Where they are not known to travel, that they stay is said."""
    gate = {"identified": {"max": 0.5}}
    raw = tiny(model="study.test_wrong_calm:Normed", mode="train", knows=knows, attacks=["closed-form"], gate=gate)
    plan = tmp_path / "plan.yaml"
    plan.write_text(yaml.safe_dump(raw | {"data": raw["data"] | {"batch": 2}, "defenses": [{"noise": {"sigma": 10}}]}))
    CliRunner().invoke(main, ["audit", str(plan), "-o", str(tmp_path / "out"), "--workers", "1"])
    store = Store.open(tmp_path / "out")
    told = [r.text for r in verdict_of(store).gate.reasons if r.text.startswith("statistics: ")]
    assert bool(told) == ("buffers" in knows)
    if told:
        assert "running statistics of norm, raw: no defence covers them" in told[0]
    lint = read_lint(tmp_path / "out", store.audit.identity)
    store.close()
    passed = verdict([*POWER, *quiet(20)], LIMIT)
    record = signed(passed, gate=LIMIT, config={}, contents={}, lint=lint)
    assert ("if the running statistics of BatchNorm stay with the client" in str(record["title"])) != bool(told)
    assert "statistics" not in str(signed(passed, gate=LIMIT, config={}, contents={}, lint=[])["title"])


@pytest.mark.parametrize(
    ("f1", "constant", "words", "leaks"),
    [
        ([1.0] * 5, 0.7, "read right in every client (F1 1.00", True),
        ([1.0] * 2, 0.7, "read right in every client (F1 1.00", True),
        ([1.0, 1.0, 2 / 3, 1.0, 1.0] * 3, [1.0, 2 / 3, 1 / 3], "read better than by guessing", True),
        ([0.9] * 4, 0.67, "too few clients to tell (F1 0.90", None),
        ([0.7] * 14, 0.67, "too few clients to tell", None),
        ([1.0, 0.0] * 3, 0.5, "no better than by guessing", False),
    ],
)
def test_labels_that_were_read_are_said_to_be_read(
    f1: list[float], constant: float | list[float], words: str, leaks: bool | None
) -> None:
    """Labels of 20 of 20 records (F1 1.00, constant guess .70) and F1 .98 in 14 clients: "cannot be told", and a gate
    without a limit on labels passed."""
    guesses = itertools.cycle(constant if isinstance(constant, list) else [constant])
    pairs = zip(f1, guesses, strict=False)
    rows = [trial(i, 10.0, defense="d", f1=value, constant=guess) for i, (value, guess) in enumerate(pairs)]
    found = row_of([*POWER, *rows])
    assert found.label_f1 is not None
    assert found.label_f1.leaks is leaks
    assert words in label_words([found])
    reasons = judged([*POWER, *rows], identified={"max": 0.9}).reasons
    assert any("labels: m, fedsgd, d: they are read better" in r.text for r in reasons) == bool(leaks)


def test_labels_of_one_client_beside_certified_examples_are_read() -> None:
    """One client, its example certified: "one client cannot tell that from luck"."""
    for certified in (0, 1):
        row = trial(0, 80.0, defense="d", identified=True, f1=1.0, constant=0.5, certified=certified)
        assert ("read right (F1 1.00)" in label_words([row_of([*POWER, row])])) == bool(certified)


def test_texts_behind_top_k_are_not_said_to_be_read_whole() -> None:
    """ "Reads the tokens of all 2 examples exactly: 12 of 62 rows moved: these tokens occur, others may"."""
    ids = torch.randint(1, 60, (60, 6), generator=torch.Generator().manual_seed(0))
    source = Tokens(inputs=ids, labels=torch.arange(60) % 2, words=[str(i) for i in range(60)], padding=0)
    raw = tiny(
        model="study.test_wrong_calm:Bag",
        data={"source": source, "batch": 2, "batches": 2},
        attacks=["tokens"],
        gallery=5,
    )
    found = [f for f in lint_plan(resolve_plan(raw)) if f.rule == "exact-read"]
    whole, cut = (next(f.evidence for f in found if name in f.where) for name in ("none", "topk"))
    assert "the tokens of all 2 examples exactly" in whole
    assert "tokens reads tokens of the examples: " in cut
    assert "others may" in cut


class Bag(nn.Module):
    """Mean of embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(60, 8, padding_idx=0), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.embed(x).mean(1))
        return out


def test_sets_and_counts_of_tokens_are_kept_apart() -> None:
    """ "All tokens and no others came back from 14 of 14 clients (as often as they occur from 3); F1 0.88"."""
    leak = TokenLeak(0.88, 0.8, 0.9, 1.0, 0.8, 0.29, 1.0, 3 / 14, 0.0, 14)
    said = (
        "the same tokens and no others from 14 of 14 clients, as often as they occur from 3; F1 0.88 counts how often"
    )
    assert leak.words == f"{said}, of the most frequent tokens 0.29"
    assert replace(leak, mean=1.0, counts=1.0).words.endswith("from 14; F1 1.00, of the most frequent tokens 0.29")
