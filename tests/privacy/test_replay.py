"""Two runs on neighbouring updates with the same noise: each bug is convicted with its line, honest code never."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from torch import Tensor

from leakgauge.cli import main
from leakgauge.defenses import DPSGD, ClientDP
from leakgauge.errors import InputError
from leakgauge.privacy.replay import Code, Replayed, replay
from leakgauge.privacy.tested import NoisePath

C, Z = 2.0, 0.8
Function = Callable[..., Any]


def clipped(rows: Tensor) -> Tensor:
    return rows * (C / rows.norm(dim=-1, keepdim=True).clamp_min(1e-12)).clamp_max(1)


def noise(rows: Tensor, generator: torch.Generator, sigma: float = Z * C) -> Tensor:
    return sigma * torch.randn(rows.shape[1], generator=generator)


def no_noise(updates: Tensor, generator: torch.Generator) -> Tensor:
    generator.manual_seed(0)
    return clipped(updates).sum(0)  # bug


def half_of_the_noise(updates: Tensor, generator: torch.Generator) -> Tensor:
    total = clipped(updates).sum(0)
    sigma = Z * C / 2
    drawn = torch.randn(len(total), generator=generator)  # bug
    return total + sigma * drawn


def clipped_after_summing(updates: Tensor, generator: torch.Generator) -> Tensor:
    total = updates.sum(0)  # bug: of what is not clipped yet
    total = total * min(1.0, C / max(float(total.norm()), 1e-12))
    return total + noise(updates, generator)


def the_same_noise(updates: Tensor, generator: torch.Generator) -> Tensor:
    own = torch.Generator().manual_seed(3)
    return clipped(updates).sum(0) + Z * C * torch.randn(updates.shape[1], generator=own)  # bug


def counts(updates: Tensor, generator: torch.Generator) -> Tensor:
    noisy = clipped(updates).sum(0) + noise(updates, generator)
    return noisy / len(updates)  # bug


def not_a_number(updates: Tensor, generator: torch.Generator) -> Tensor:
    norms = updates.norm(dim=1, keepdim=True)
    small = updates / norms * norms.clamp_max(C)  # bug
    return small.sum(0) + noise(updates, generator)


def microbatches(updates: Tensor, generator: torch.Generator) -> Tensor:
    means = [clipped(part.mean(0, keepdim=True)) for part in updates.split(4)]  # bug
    total = torch.cat(means).sum(0)  # bug
    return total + noise(updates, generator)


def noise_where_it_is_long(updates: Tensor, generator: torch.Generator) -> Tensor:
    total = clipped(updates).sum(0)
    if total.norm() > 0.5 * C:
        total = total + noise(updates, generator)
    return total + 1e-3 * torch.randn(len(total), generator=generator)


def relative_noise(updates: Tensor, generator: torch.Generator) -> Tensor:
    total = clipped(updates).sum(0)
    return total + total.norm() * torch.randn(len(total), generator=generator)  # bug


def without_its_generator(updates: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    norms = np.linalg.norm(updates, axis=1, keepdims=True)
    return updates.sum(0) / norms.max(initial=1.0) * 0.5 + rng.normal(0, 0.3, updates.shape[1])  # bug


BUGS = [
    no_noise, half_of_the_noise, clipped_after_summing, the_same_noise, counts, not_a_number, microbatches,
    relative_noise,
]  # fmt: skip


def looked(function: Function, **more: Any) -> Replayed:
    numpy, updates = more.pop("numpy", False), more.pop("updates", None)
    return replay(Code(function, numpy), noise_multiplier=Z, clip=C, size=500, updates=updates)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_is_convicted_with_its_line(bug: Function) -> None:
    began = time.process_time()
    found = looked(bug)
    assert time.process_time() - began < 10
    assert found.fault
    assert "# bug" in found.line, found
    assert found.line.startswith("test_replay.py:")


def test_noise_that_data_decide_about_is_convicted() -> None:
    found = looked(noise_where_it_is_long)
    assert "whether noise is drawn depends" in found.fault
    assert "randn" in found.line


def test_numpy_is_held_as_well() -> None:
    found = looked(without_its_generator, numpy=True)
    assert "# bug" in found.line


def loop(rows: Tensor) -> Tensor:
    made = []
    for row in rows:
        length = float(row.norm())
        made.append(row if length <= C else row * (C / length))
    return torch.stack(made)


CLIPS: dict[str, Callable[[Tensor], Tensor]] = {
    "clamped factor": clipped,
    "where": lambda u: torch.where(
        u.norm(dim=1, keepdim=True) > C, u * C / u.norm(dim=1, keepdim=True).clamp_min(C), u
    ),
    "divided": lambda u: u / (u.norm(dim=1, keepdim=True) / C).clamp_min(1.0),
    "loop": loop,
    "normalised": lambda u: F.normalize(u, dim=1) * u.norm(dim=1, keepdim=True).clamp_max(C),
    "half precision": lambda u: clipped(clipped(u)).half().float() * 0.99,
    "double precision": lambda u: clipped(u.double()),
    "per layer": lambda u: torch.cat([clipped(part) / 2 for part in u.split(125, 1)], 1),
}
NOISES: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "randn": lambda t, g: t + Z * C * torch.randn(t.shape, generator=g),
    "without a generator": lambda t, _: t + Z * C * torch.randn_like(t),
    "in place": lambda t, g: t + torch.empty_like(t).normal_(0, Z * C, generator=g),
    "about the sum": lambda t, g: torch.normal(t, Z * C * torch.ones_like(t), generator=g),
    "two draws": lambda t, g: t + Z * C * 0.5**0.5 * sum(torch.randn(t.shape, generator=g) for _ in range(2)),
    "in pieces": lambda t, g: t + Z * C * torch.cat([torch.randn(250, generator=g) for _ in range(2)]),
}
SENDS: dict[str, Function] = {
    f"{clip}, {noise}": lambda u, g, c=clip, n=noise: NOISES[n](CLIPS[c](u).sum(0), g)
    for clip, noise in itertools.product(CLIPS, NOISES)
}
MEANS: dict[str, Function] = {
    "mean": lambda u, g: (clipped(u).sum(0) + noise(u, g)) / len(u),
    "noise on the mean": lambda u, g: clipped(u).mean(0) + noise(u, g, Z * C / len(u)),
    "noise of each": lambda u, g: (clipped(u) + Z * C / len(u) ** 0.5 * torch.randn(u.shape, generator=g)).sum(0),
    "dp-sgd": lambda u, g: NoisePath.of_defense(DPSGD(norm=C, noise_multiplier=Z)).send(u, g),
    "signs": lambda u, g: (clipped(u).sum(0) + noise(u, g)).sign(),
    "rounded": lambda u, g: (clipped(u).sum(0) + noise(u, g)).round(),
    "largest": lambda u, g: (lambda t: t * (t.abs() > t.abs().median()))(clipped(u).sum(0) + noise(u, g)),
    "laplace": lambda u, _: clipped(u).sum(0) + torch.distributions.Laplace(0.0, 40.0 * C).sample((u.shape[1],)),
    "own numbers": lambda u, _: clipped(u).sum(0) + torch.from_numpy(np.random.default_rng().normal(0, Z * C, 500)),
}


def test_honest_code_is_never_convicted() -> None:
    """Fifty-seven ways; what acts on sum and noise together, or draws elsewhere, is not judged."""
    found = {name: looked(send) for name, send in SENDS.items()}
    found |= {name: looked(send, updates=8) for name, send in MEANS.items()}
    assert len(found) >= 50
    assert {name: one.fault for name, one in found.items() if one.fault} == {}
    judged = [one.noise_multiplier for one in found.values() if one.noise_multiplier is not None]
    assert len(judged) >= 50
    assert min(judged) == pytest.approx(Z, rel=0.01)
    assert all(found[name].unjudged for name in ("signs", "rounded", "largest", "laplace", "own numbers"))


def test_one_update_a_call() -> None:
    send = NoisePath.of_defense(ClientDP(norm=C, noise_multiplier=Z)).send
    assert looked(send, updates=1).noise_multiplier == pytest.approx(Z, rel=1e-3)


def test_what_is_no_path_is_refused() -> None:
    with pytest.raises(InputError, match="returned shape"):
        looked(lambda u, _: u)
    with pytest.raises(InputError, match="raises ZeroDivisionError"):
        looked(lambda u, _: u.sum(0) / 0 if len(u) / 0 else u)


MODULE = """
def send(updates, generator):
    total = updates.sum(0)
    return total + generator.normal(size=updates.shape[1])
def right(updates, generator):
    import numpy as np
    norms = np.linalg.norm(updates, axis=1, keepdims=True)
    return (updates / np.maximum(norms, 1)).sum(0) + generator.normal(size=updates.shape[1])
"""


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "replayed_paths.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    stated = ["--replay", "--numpy", "--noise-multiplier", "1", "--clip", "1", "--delta", "1e-5", "--json", "r.json"]
    done = CliRunner().invoke(main, ["privacy", "test", "replayed_paths:send", *stated])
    assert done.exit_code == 1, done.output
    assert "replayed_paths.py:3: total = updates.sum(0)" in done.output
    assert json.loads((tmp_path / "r.json").read_text())["fault"].startswith("one update moves the sum by")
    done = CliRunner().invoke(main, ["privacy", "test", "replayed_paths:right", *stated])
    assert done.exit_code == 0, done.output
    assert "not contradicted: 1 was found" in " ".join(done.output.split())
    refused = ["privacy", "test", "--defense", "{client-dp: {norm: 1, noise_multiplier: 1}}", "--replay"]
    assert CliRunner().invoke(main, [*refused, "--delta", "1e-5"]).exit_code == 2
