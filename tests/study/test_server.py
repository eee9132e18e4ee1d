"""A dishonest server in a plan: what clients receive, what is read, and what is refused."""

from __future__ import annotations

import pytest
from reproduce.mkor.quiet import QuietTaps

from leakgauge.compute import Compute
from leakgauge.errors import InputError
from leakgauge.servers.mkor import MKOR, NLLRaw
from leakgauge.study.plan import Plan, resolve_plan
from leakgauge.study.trial import parts, run_trial

PLAN = {
    "model": {"vgg": {"blocks": [[24], [96]], "hidden": [32]}},
    "data": {"source": "samples", "size": 32, "batch": 2, "batches": 2},
    "server": "mkor",
    "attacks": ["closed-form"],
}


def plan(**changes) -> Plan:
    return resolve_plan(PLAN | changes)


def test_the_servers_read_is_an_attack_like_any_other() -> None:
    def attacks(loaded: Plan) -> set[str]:
        return {parts(loaded, key)[2].label for key in loaded.trials()}

    assert attacks(plan()) == {"server-read", "closed-form"}
    assert attacks(plan(server="honest")) == {"closed-form"}
    assert len(plan(attacks=["server-read"]).attacks) == 1


@pytest.mark.parametrize("defense", ["none", {"noise": {"relative": 0.01}}, {"topk": {"keep": 0.3}}])
def test_a_trial_recovers_pictures_and_says_what_the_server_did(defense) -> None:
    loaded = plan(defenses=[defense], attacks=["server-read"])
    key = next(k for k in loaded.trials() if not k.control)
    record = run_trial(loaded, key, compute=Compute()).record
    assert record["scenario"]["server"] == "mkor"
    assert record["scenario"]["server_changes"] == ["parameters"]
    assert "crafting" in record["scenario"]["knowledge"]
    assert record["status"] == "converged"
    assert sum(record["scores"]["identified"]) == 2
    assert record["labels"]["true_counts_f1"] == 1


def test_a_server_that_sets_the_loss_says_so() -> None:
    loaded = plan(
        server={"mkor": {"loss": "nll-raw", "taps": {"reproduce.mkor.quiet:QuietTaps": {"noise": 0.01}}}},
        attacks=["server-read"],
    )
    assert loaded.server.value == MKOR(loss=NLLRaw(), taps=QuietTaps(noise=0.01))
    record = run_trial(loaded, loaded.trials()[0], compute=Compute()).record
    assert record["scenario"]["server_changes"] == ["parameters", "loss"]


def test_an_honest_server_has_nothing_to_read() -> None:
    loaded = plan(server="honest", attacks=["server-read"])
    record = run_trial(loaded, loaded.trials()[0], compute=Compute()).record
    assert record["status"] == "not_applicable"
    assert "honest" in record["message"]
    assert record["scenario"]["server_changes"] == []
    assert "crafting" not in record["scenario"]["knowledge"]


@pytest.mark.parametrize(
    ("changes", "field", "hint"),
    [
        ({"server": "mkoor"}, "server", "mkor"),
        ({"server": {"mkor": {"lose": "decoy"}}}, "server.mkor", "loss"),
        ({"server": {"mkor": {"loss": "decoi"}}}, "server.mkor.loss", "decoy"),
        ({"server": {"class-fishing": {"target": 99}}}, "server", "label"),
        ({"model": "lenet"}, "model", "vgg16"),
        ({"model": "resnet20"}, "model", "vgg16"),
        ({"update": "x.safetensors", "data": {"source": "samples", "batch": 1, "batches": 1}}, "server", "honest"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(changes, field, hint) -> None:
    with pytest.raises(InputError) as caught:
        plan(**changes)
    assert caught.value.field.startswith(field)
    assert hint in str(caught.value)
    assert "\n" not in str(caught.value)
