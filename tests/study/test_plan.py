"""Every way a plan can be wrong: one line that names the field and the hint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from torch import nn

from leakgauge.data import InMemory, Samples, Tokens
from leakgauge.data.source import check
from leakgauge.errors import InputError
from leakgauge.study.deal import CONTROLS, control_client
from leakgauge.study.grammar import example_text, read_yaml
from leakgauge.study.plan import resolve_plan
from leakgauge.study.trial import trial_id
from leakgauge.task import Batch
from study.plans import pictures, tiny


def silent() -> nn.Module:
    """A model without parameters."""
    return nn.Flatten()


def narrow() -> nn.Module:
    """A model with fewer outputs than the photos have classes."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 3))


def wide() -> nn.Module:
    """A model for images of another size."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 20 * 20, 10))


def number() -> int:
    """Not a model."""
    return 3


HERE = "study.test_plan"

BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"attacks": ["closed-from"]}, "attacks[0]", "did you mean 'closed-form'?"),
    ({"attacks": ["study.broken:Silent"]}, "attacks[0]", "which is no Attack"),
    ({"attacks": ["study.raising:Anything"]}, "attacks[0]", "the module raises (RuntimeError: import went wrong)"),
    ({"model": "study.raising:anything"}, "model", "the module raises (RuntimeError: import went wrong)"),
    ({"defenses": ["study.broken:Silent"]}, "defenses[0]", "derive it from leakgauge.defenses.Defense"),
    ({"clients": ["study.broken:Silent"]}, "clients[0]", "which is no Protocol"),
    ({"model": {"study.broken:Ward": {"width": "wide"}}}, "model.study.broken:Ward.width", "valid integer"),
    ({"attacks": [{"dlg": {"restart": 8}}]}, "attacks[0].dlg", "did you mean 'restarts'?"),
    ({"attacks": [{"dlg": {"restarts": 0}}]}, "attacks[0].dlg.restarts", "give a positive number"),
    ({"attacks": [{"dlg": {"restarts": "many"}}]}, "attacks[0].dlg.restarts", "is 'many'"),
    ({"atacks": ["dlg"]}, "atacks", "did you mean 'attacks'?"),
    ({"data": {"bach": 2}}, "data.bach", "did you mean 'batch'?"),
    ({"gate": {"identified": {"maximum": 1}}}, "gate.identified.maximum", "did you mean 'max'?"),
    ({"defenses": [{"noise": {"sigma": -1.0}}]}, "defenses[0].noise.sigma", "give a positive number"),
    ({"defenses": [{"noise": {}}]}, "defenses[0].noise.sigma", "exactly one of"),
    ({"defenses": [{"topk": None}]}, "defenses[0].topk", "needs keep"),
    ({"defenses": [[{"clip": {"norm": 1.0}}, {"nose": {}}]]}, "defenses[0][1]", "did you mean 'noise'?"),
    ({"defenses": [[]]}, "defenses[0]", "write none"),
    ({"defenses": [3]}, "defenses[0]", "write a name"),
    ({"clients": [{"fedavg": {"lr": -0.1}}]}, "clients[0].fedavg.lr", "positive"),
    ({"clients": []}, "clients", "name at least one"),
    ({"mode": "training"}, "mode", "is 'training'"),
    ({"knows": ["label"]}, "knows[0]", "did you mean 'labels'?"),
    ({"server": "honst"}, "server", "honest"),
    ({"seeds": []}, "seeds", "name at least one"),
    ({"seeds": 0}, "seeds", "write a list"),
    ({"defenses": "none"}, "defenses", "write a list"),
    ({"gate": {"identified": 0.05}}, "gate.identified", "write a mapping"),
    ({"gate": {"psnr": {"worst": float("nan")}}}, "gate.psnr.worst", "finite"),
    ({"gate": {"psnr": {}}}, "gate.psnr.worst", "is missing"),
    ({"defenses": [{"noise": {"sigma": float("nan")}}]}, "defenses[0].noise.sigma", "finite"),
    ({"data": {"batch": "two"}}, "data.batch", "give a whole number"),
    ({"data": {"source": "samples", "size": 10**6}}, "model", "set data.size"),
    ({"attacks": [{"auto": {"restarts": 0}}]}, "attacks[0].auto.restarts", "give a positive number"),
    ({"seeds": [1, 1]}, "seeds", "give each seed once"),
    ({"attacks": ["dlg", "dlg"]}, "attacks", "give each once"),
    ({"clients": [{"secure-aggregation": {"cohort": 2}}]}, "clients[0].cohort", "change data.batch or give sizes"),
    (
        {"mode": "train", "model": {"convnet": {"width": 1}}, "defenses": [{"clip-examples": {"norm": 1.0}}]},
        "defenses[0]",
        "GroupNorm",
    ),
    (
        {"attacks": [{"matching": {"canvas": {"pixels": {"first": "uniform"}}}}]},
        "attacks[0].matching.canvas",
        "is code",
    ),
    ({"budget": {"gradient_evaluations": 0}}, "budget.gradient_evaluations", "greater than or equal to 1"),
    ({"data": {"source": "samples", "size": 16, "batch": 9}}, "data.batch", "8"),
    ({"data": {"source": "samples", "size": 16, "batches": 9}}, "data.batches", "8"),
    ({"data": {"source": "sample", "size": 16}}, "data.source", "samples"),
    ({"data": {"source": "folder:no/such/folder"}}, "data.source", "no folder 'no/such/folder'"),
    ({"model": "lennet"}, "model", "did you mean 'lenet'?"),
    ({"model": {"lenet": {"clases": 3}}}, "model.lenet", "did you mean 'classes'?"),
    ({"model": {"lenet": {"size": 64}}}, "model", "set data.size: 64 or the model to match"),
    ({"model": {"lenet": {"channels": 1}}}, "model", "set data.channels: 1 or the model to match"),
    ({"model": {"lenet": {"channels": 1, "size": 64}}}, "model", "set data.channels: 1 and data.size: 64 or the model"),
    ({"model": []}, "model", "names no model"),
    ({"model": f"{HERE}:silent"}, "model", "has no trainable parameters"),
    ({"model": f"{HERE}:narrow"}, "model", "at least as many outputs as classes"),
    ({"model": f"{HERE}:wide"}, "model", "does not accept examples of shape (3, 16, 16)"),
    ({"model": f"{HERE}:number"}, "model", "return a torch.nn.Module"),
    ({"model": f"{HERE}:missing"}, "model", "cannot import"),
    ({"model": {"mlp": {"weights": "no/such/file.safetensors"}}}, "model", "no file"),
    ({"only": [{"attack": "dlg"}]}, "only[0].attack", "not in the plan"),
    ({"only": [{"atack": "closed-form"}]}, "only[0].atack", "did you mean 'attack'?"),
    ({"lpips": "no/such/weights"}, "lpips", "no/such/weights"),
    ({"update": "no/such/update"}, "defenses", "one client's"),
]


@pytest.mark.parametrize(("changes", "field", "text"), BAD, ids=[f"{f}-{i}" for i, (_, f, _) in enumerate(BAD)])
def test_bad_plans_name_the_field_and_the_hint(changes: dict[str, Any], field: str, text: str) -> None:
    with pytest.raises(InputError) as error:
        resolve_plan(tiny(**changes))
    assert field in error.value.field
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_a_corrupt_image_is_found_before_anything_runs(tmp_path: Path) -> None:
    for i in range(4):
        Image.fromarray(np.arange(400, dtype=np.uint8).reshape(20, 20)).save(tmp_path / f"{i}.png")
    (tmp_path / "1.png").write_bytes((tmp_path / "1.png").read_bytes()[:60])
    with pytest.raises(InputError, match=r"1\.png"):
        resolve_plan(tiny(data={"source": f"folder:{tmp_path}", "size": 16, "batches": 2}))


@pytest.mark.parametrize("content", [b"", b"not an archive", b"PK\x03\x04 truncated"])
def test_an_unreadable_npz_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"x\.npz"):
        resolve_plan(tiny(data={"source": f"npz:{tmp_path / 'x.npz'}", "batches": 1}))


def test_an_image_out_of_range_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", images=np.full((4, 3, 16, 16), 2.0, np.float32), labels=np.arange(4))
    with pytest.raises(InputError, match=r"outside \[0, 1\]; set low and high"):
        resolve_plan(tiny(data={"source": f"npz:{tmp_path / 'x.npz'}", "batches": 1}))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "not YAML"),
        ("a: {b: 1\nc: 2", "YAML .line 2, column 2: expected ',' or '}', but got ':'.;"),
        ("- 1", "not a mapping"),
        ("", "not a mapping"),
    ],
)
def test_a_file_that_is_no_plan(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "plan.yaml").write_text(text)
    with pytest.raises(InputError, match=words):
        read_yaml(tmp_path / "plan.yaml")


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text("gate: {identified: {max: 0.05}}\nmodel: mlp\ngate: {psnr: {worst: 90}}\n")
    with pytest.raises(InputError, match="gate: stands twice"):
        read_yaml(tmp_path / "plan.yaml")


def test_weights_are_loaded(tmp_path: Path) -> None:
    plan = resolve_plan(tiny())
    module = plan.broadcast(plan.trials()[0]).task.module
    torch.save({k: v + 1 for k, v in module.state_dict().items()}, tmp_path / "m.pt")
    loaded = resolve_plan(tiny(model={"mlp": {"hidden": [8], "weights": str(tmp_path / "m.pt")}}))
    task = loaded.broadcast(loaded.trials()[0]).task
    assert all(torch.equal(v, module.state_dict()[k] + 1) for k, v in task.module.state_dict().items())


def test_the_embedded_example_is_valid_and_its_controls_are_in_it() -> None:

    plan = resolve_plan(yaml.safe_load(example_text()))
    names = [trial_id(plan, key) for key in plan.trials()]
    assert len(names) == len(set(names))
    assert not any(key.control for key in plan.trials())


def test_controls_are_the_plans_own_clients_without_the_defence() -> None:
    """Power shown on one example and one gradient says nothing of local training on batches."""
    plan = resolve_plan(tiny(clients=[{"fedavg": {"epochs": 2}}], attacks=["closed-form"]))
    keys = [key for key in plan.trials() if key.control]
    name = plan.clients[0].label
    assert [trial_id(plan, k) for k in keys] == [
        f"control/mlp(hidden=[8])/{name}/none/closed-form/s0/b00{i}" for i in range(5)
    ]
    undefended = resolve_plan(tiny(defenses=["none"]))
    assert not any(key.control for key in undefended.trials()), "a row without a defence is its own control"
    enough = resolve_plan(tiny(data={"source": "samples", "size": 16, "batches": 5}))
    assert not any(key.control for key in enough.trials())


def test_a_control_holds_public_examples_that_no_client_has() -> None:
    class Numbered:
        name, shape, classes, low, high, normalise = "numbered", (1, 4, 4), 3, 0.0, 1.0, False
        labels = torch.arange(60) % 3

        def __len__(self) -> int:
            return 60

        def read(self, indices: list[int]) -> Batch:
            return Batch(torch.tensor(indices).view(-1, 1, 1, 1) / 60 * torch.ones(1, 4, 4), self.labels[indices])

        def names(self, indices: list[int]) -> list[str]:
            return [str(i) for i in indices]

    batches = [[0, 1, 2, 3], [4, 5, 6, 7]]
    crops = [control_client(Samples(size=16), [[0, 1], [2, 3]], n).names for n in range(2)]
    assert crops == [("public crop 1", "public crop 2"), ("public crop 3", "public crop 4")]
    clients = [control_client(Numbered(), batches, n) for n in range(CONTROLS)]
    held = [i for c in clients for i in c.indices]
    assert len(held) == len(set(held)) == 4 * CONTROLS
    assert not set(held) & {i for b in batches for i in b}
    for c in clients:
        assert torch.equal(c.batch.inputs, Numbered().read(list(c.indices)).inputs)
        assert torch.equal(control_client(Numbered(), batches, 0).batch.inputs, clients[0].batch.inputs)


def test_only_keeps_what_fits_every_key() -> None:
    plan = resolve_plan(
        tiny(only=[{"attack": "closed-form", "defense": "topk"}, {"attack": "inverting-gradients", "batches": 1}])
    )
    names = {trial_id(plan, key) for key in plan.trials() if not key.control}
    assert len(names) == 2 + 2
    assert not any("none/closed-form" in name for name in names)


def test_the_same_seed_gives_the_same_weights_and_another_one_others() -> None:
    plan = resolve_plan(tiny(seeds=[0, 1]))
    by_seed = {key.seed: plan.broadcast(key).task.parameters["1.weight"] for key in plan.trials()}
    again = {key.seed: plan.broadcast(key).task.parameters["1.weight"] for key in plan.trials()}
    assert torch.equal(by_seed[0], again[0])
    assert not torch.equal(by_seed[0], by_seed[1])


def test_an_attack_may_be_built_from_parts() -> None:
    parts = {"objective": "cosine", "prior": {"tv": {"weight": 0.01}}, "minimiser": {"adam": {"steps": 3}}}
    plan = resolve_plan(tiny(attacks=[{"matching": parts}]))
    assert plan.attacks[0].value.minimiser.steps == 3
    with pytest.raises(InputError, match="did you mean 'cosine'"):
        resolve_plan(tiny(attacks=[{"matching": {"objective": "cosin"}}]))


def test_secure_aggregation_takes_its_client_by_name() -> None:
    client = {"secure-aggregation": {"cohort": 2, "client": {"fedavg": {"lr": 0.1}}}}
    data = {"source": "samples", "size": 16, "batch": 2, "batches": 2}
    plan = resolve_plan(tiny(clients=[client], data=data, defenses=["none"]))
    assert plan.clients[0].value.client.optimiser.lr == 0.1


@pytest.mark.parametrize("arguments", [None, {"width": 6}, {"width": 6, "deep": True}])
def test_a_model_may_be_a_class(arguments: dict[str, Any] | None) -> None:
    plan = resolve_plan(tiny(model={"study.broken:Ward": arguments}, attacks=["closed-form"]))
    assert (
        plan.broadcast(plan.trials()[0]).task.parameters["inner.weight"].shape[0]
        == (arguments or {"width": 4})["width"]
    )


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
