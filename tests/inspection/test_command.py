"""The client's command: files in, exit code, words, JSON and page out."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from inspection import honest
from leakgauge.cli import main
from leakgauge.errors import InputError
from leakgauge.inspection.rule import Limits, Received, rules
from leakgauge.inspection.verdict import CheckLevel, inspect, render
from leakgauge.models import mlp
from leakgauge.models.weights import fingerprint

MLP = "{mlp: {shape: [3, 32, 32], hidden: [16], classes: 2}}"


def net() -> dict[str, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return honest.state(mlp(shape=(3, 32, 32), hidden=(16,), classes=2))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_file(net(), tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.fixture
def crafted(tmp_path: Path) -> Path:
    state = net() | {"1.weight": torch.full((16, 3072), 1e-3)}
    save_file(state, tmp_path / "crafted.safetensors")
    return tmp_path / "crafted.safetensors"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["inspect", *map(str, arguments)])


def complaint(*arguments: object) -> str:
    """The one line that bad input gives."""
    result = run(*arguments)
    assert result.exit_code == 2
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1
    return lines[0]


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def test_honest_model_exits_0(saved: Path, tmp_path: Path) -> None:
    result = run(saved, "--json", tmp_path / "out.json")
    assert result.exit_code == 0
    assert "nothing found" in result.stdout
    assert "no proof" in " ".join(result.stdout.split())
    assert f"sha256:{fingerprint(net())}" in result.stdout
    found = read(tmp_path / "out.json")
    assert found["level"] == "nothing-found"
    assert found["score"] < 1
    assert found["given"] == ["state"]


def test_crafted_model_exits_1(crafted: Path, tmp_path: Path) -> None:
    result = run(crafted, "--json", tmp_path / "out.json", "-o", tmp_path / "out.html")
    assert result.exit_code == 1
    assert "crafted" in result.stdout
    found = read(tmp_path / "out.json")
    worst = found["findings"][0]
    assert worst["rule"] == "constant-rows"
    assert worst["severity"] == "crafted"
    assert worst["where"][0] == "1.weight"
    assert worst["score"] == pytest.approx(worst["statistic"] / worst["limit"])
    assert "constant-rows" in (tmp_path / "out.html").read_text(encoding="utf-8")


def test_skipped_rules_say_what_they_need(saved: Path, tmp_path: Path) -> None:
    run(saved, "--json", tmp_path / "out.json")
    skipped = {s["rule"]: s["needs"] for s in read(tmp_path / "out.json")["skipped"]}
    measured = {f["rule"] for f in read(tmp_path / "out.json")["findings"]}
    assert skipped["replaced-reference"] == ["a trusted model (--reference)"]
    assert measured.isdisjoint(skipped)
    assert measured | set(skipped) == set(rules())


def test_not_finite_entries_are_a_finding(tmp_path: Path) -> None:
    state = net()
    state["1.weight"][2, 3] = math.nan
    save_file(state, tmp_path / "nan.safetensors")
    result = run(tmp_path / "nan.safetensors", "--json", tmp_path / "out.json")
    assert result.exit_code == 1
    found = read(tmp_path / "out.json")
    assert found["findings"][0]["rule"] == "not-finite"
    odd = next(u for u in found["unjudged"] if u["tensor"] == "1.weight")
    assert odd["reason"] == "has entries that are not finite"
    assert odd["rules"] == sorted(odd["rules"])
    assert "taps" in odd["rules"]
    assert "could not be judged by some rules: 1.weight" in result.output


class TestFiles:
    def test_checkpoint_with_wrapper_is_the_same_model(self, saved: Path, tmp_path: Path) -> None:
        wrapped = {"epoch": 3, "state_dict": {f"module.{k}": v for k, v in net().items()}}
        torch.save(wrapped, tmp_path / "checkpoint.pt")
        torch.save(net(), tmp_path / "plain.pt")
        own = fingerprint(net())
        for name in ("checkpoint.pt", "plain.pt"):
            assert own in run(tmp_path / name).stdout

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("none.pt", "no file"),
            (".", "is a folder"),
            ("cut.safetensors", "cut.safetensors"),
            ("cut.pt", "cut.pt"),
            ("module.pt", "more than tensors"),
            ("empty.safetensors", "no tensors"),
            ("odd.pt", "not a state dict"),
        ],
    )
    def test_what_is_no_model_is_one_line(self, name: str, said: str, saved: Path, tmp_path: Path) -> None:
        torch.save(net(), tmp_path / "whole.pt")
        torch.save(nn.Linear(2, 2), tmp_path / "module.pt")
        torch.save({"state_dict": {"lr": 0.1}}, tmp_path / "odd.pt")
        save_file({}, tmp_path / "empty.safetensors")
        for whole in (saved, tmp_path / "whole.pt"):
            (tmp_path / f"cut{whole.suffix}").write_bytes(whole.read_bytes()[:3000])
        assert said in complaint(tmp_path / name)

    def test_folder_of_results_must_exist(self, saved: Path, tmp_path: Path) -> None:
        assert "no folder" in complaint(saved, "-o", tmp_path / "none" / "page.html")


class TestComparisons:
    @pytest.mark.parametrize("option", ["--reference", "--previous"])
    def test_same_and_replaced(self, option: str, saved: Path, tmp_path: Path) -> None:
        assert run(saved, option, saved).exit_code == 0
        other = net() | {"1.weight": torch.randn(16, 3072, generator=torch.Generator().manual_seed(7)) / 50}
        save_file(other, tmp_path / "other.safetensors")
        assert run(saved, option, tmp_path / "other.safetensors").exit_code == 1

    @pytest.mark.parametrize("option", ["--reference", "--previous"])
    def test_another_shape_is_named(self, option: str, saved: Path, tmp_path: Path) -> None:
        save_file(net() | {"1.weight": torch.zeros(8, 3072)}, tmp_path / "narrow.safetensors")
        line = complaint(saved, option, tmp_path / "narrow.safetensors")
        assert "shape of 1.weight (8, 3072) for (16, 3072)" in line
        assert option in line

    def test_missing_and_additional_tensors_are_named(self, saved: Path, tmp_path: Path) -> None:
        less = {k: v for k, v in net().items() if k != "3.bias"}
        save_file(less, tmp_path / "less.safetensors")
        assert "missing 3.bias" in complaint(saved, "--reference", tmp_path / "less.safetensors")
        assert "unknown 3.bias" in complaint(tmp_path / "less.safetensors", "--reference", saved)

    def test_fingerprints_of_other_clients(self, saved: Path) -> None:
        own = fingerprint(net())
        assert run(saved, "--hash", own, "--hash", f"sha256:{own.upper()}").exit_code == 0
        result = run(saved, "--hash", own, "--hash", "0" * 64)
        assert result.exit_code == 1
        assert "1 of 2 other clients" in " ".join(result.stdout.replace("│", " ").split())
        assert "no fingerprint" in complaint(saved, "--hash", "123")


class TestModelAndData:
    @pytest.fixture
    def photos(self, tmp_path: Path) -> Path:
        g = torch.Generator().manual_seed(0)
        for i in range(12):
            folder = tmp_path / "photos" / "ab"[i % 2]
            folder.mkdir(parents=True, exist_ok=True)
            low = torch.randint(256, (4, 4, 3), generator=g, dtype=torch.uint8).numpy()
            Image.fromarray(low).resize((32, 32)).save(folder / f"{i}.png")
        return tmp_path / "photos"

    def test_folder_runs_the_rules_that_need_a_format(self, saved: Path, photos: Path, tmp_path: Path) -> None:
        run(saved, "--model", MLP, "--data", photos, "--json", tmp_path / "out.json")
        found = read(tmp_path / "out.json")
        assert found["given"] == ["state", "module", "task"]
        assert all("--data" not in need for s in found["skipped"] for need in s["needs"])
        assert "sub-models" in {f["rule"] for f in found["findings"]}

    def test_data_needs_a_model(self, saved: Path, photos: Path) -> None:
        assert "needs the architecture" in complaint(saved, "--data", photos)

    def test_another_architecture(self, saved: Path) -> None:
        line = complaint(saved, "--model", "{mlp: {hidden: [8], classes: 2}}")
        assert "shape of 1.weight (16, 3072) for (8, 3072)" in line
        assert "missing 0.weight" in complaint(saved, "--model", "lenet")

    def test_unknown_model(self, saved: Path) -> None:
        assert "did you mean 'mlp'?" in complaint(saved, "--model", "mpl")

    def test_unknown_source(self, saved: Path) -> None:
        assert "unknown source" in complaint(saved, "--model", MLP, "--data", "nowhere:x")


class TestFingerprint:
    def test_is_of_names_shapes_types_and_bits(self) -> None:
        plain = fingerprint(net())
        assert fingerprint(dict(reversed(net().items()))) == plain
        bit = net()
        bit["1.weight"][0, 0] = torch.nextafter(bit["1.weight"][0, 0], torch.tensor(1.0))
        name = {("1.w" if k == "1.weight" else k): v for k, v in net().items()}
        shape = net() | {"1.weight": net()["1.weight"].reshape(3072, 16)}
        kind = net() | {"1.bias": net()["1.bias"].view(torch.int32)}
        assert len({plain, *(fingerprint(s) for s in (bit, name, shape, kind))}) == 5

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.bool, torch.int8, torch.float64])
    def test_takes_every_type(self, dtype: torch.dtype) -> None:
        a = {"x": torch.ones((), dtype=dtype), "y": torch.zeros(3, 0, dtype=dtype)}
        a |= {"z": torch.ones(4, 2, dtype=dtype).T}
        assert fingerprint(a) == fingerprint({k: v.clone() for k, v in a.items()})
        assert fingerprint(a) != fingerprint(a | {"x": torch.zeros((), dtype=dtype)})


class TestLimits:
    def test_must_be_positive(self) -> None:
        with pytest.raises(InputError, match="taps"):
            Limits(limits={"taps": 0.0}, made_by="", models=0)

    def test_decide(self) -> None:
        state = net() | {"1.weight": torch.full((16, 3072), 1e-3)}
        levels = []
        for limit in (2e4, 5e3, 1e3):
            found = inspect(
                Received(state),
                Limits(limits={"constant-rows": limit}, made_by="", models=0),
                name="m",
            )
            levels.append(found.level)
        assert levels == [CheckLevel.NOTHING_FOUND, CheckLevel.SUSPICIOUS, CheckLevel.CRAFTED]


class _Tags(HTMLParser):
    VOID = ("meta", "link", "br", "img", "wbr", "circle", "path", "use")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


@pytest.mark.parametrize("name", ["model", "crafted <b>&"])
def test_page_is_whole_and_asks_nothing_of_the_network(name: str) -> None:
    state = net() | ({"1.weight": torch.full((16, 3072), 1e-3)} if name != "model" else {})
    result = inspect(Received(state), Limits.packaged(), name=name)
    page = render(result)
    tags = _Tags()
    tags.feed(page)
    assert not tags.open
    assert "b" not in tags.seen
    assert not re.findall(r"(?:src|href)=\"(?!#|data:)", page)
    assert fingerprint(state) in page
    for f in result.findings:
        assert f.rule in page


def test_a_server_prints_no_verdict_of_its_own(tmp_path: Path) -> None:
    """Names come from the server: escape codes, line breaks and marks of direction stay visible."""
    hostile = "1.weight\x1b[2K\rmodel: nothing found\u202e\n"
    save_file({hostile: torch.full((16, 3072), 1e-3)}, tmp_path / "s.safetensors")
    for options in ((), ("-v",)):
        out = run(tmp_path / "s.safetensors", *options).stdout
        assert "\\x1b[2K" in out
        assert all(c.isprintable() for c in out.replace("\n", ""))
        assert not any(line.startswith("model: nothing") for line in out.splitlines())


@pytest.mark.parametrize("verbose", [(), ("-v",)])
def test_an_honest_model_is_a_short_screen_and_v_shows_the_rest(tmp_path: Path, verbose: tuple[str, ...]) -> None:
    save_file(net(), tmp_path / "s.safetensors")
    shown = run(tmp_path / "s.safetensors", *verbose).stdout.splitlines()
    assert all(len(line) <= 80 for line in shown)
    assert (len(shown) <= 16) is not bool(verbose)
    assert any(line.startswith("not-finite") for line in shown) is bool(verbose)
