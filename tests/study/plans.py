"""Small plans that run in seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor

from leakgauge.report.html import render
from leakgauge.study.document import summary, verdict_of
from leakgauge.study.evaluate import Truth, class_prior
from leakgauge.study.judging.verdict import VERDICT
from leakgauge.study.store import Store
from leakgauge.task import Batch


def document(store: Store) -> dict[str, Any]:
    """The report of what is in a store, as report.json has it."""
    judged = verdict_of(store)
    verdict = VERDICT.dump_python(judged, mode="json")
    return summary(store, judged) | {"trials": list(store.each()), "verdict": verdict}


def page_of(store: Store) -> str:
    """The page of what is in a store, without pictures."""
    judged = verdict_of(store)
    return render(summary(store, judged), judged, store.trials(), {})


def tiny(**changes: Any) -> dict[str, Any]:
    """Eight trials and ten controls: closed form and a few steps of signed Adam on photos at 16 px."""
    plan: dict[str, Any] = {
        "name": "tiny",
        "model": {"mlp": {"hidden": [8]}},
        "data": {"source": "samples", "size": 16, "batch": 1, "batches": 2},
        "clients": ["fedsgd"],
        "defenses": ["none", {"topk": {"keep": 0.1}}],
        "attacks": ["closed-form", {"inverting-gradients": {"steps": 5}}],
        "gallery": 20,
    }
    return plan | changes


def plan_file(folder: Path) -> Path:
    """Some forty small trials on records of numbers, each with a time limit."""
    x = np.random.default_rng(0).random((60, 1, 12), dtype=np.float32)
    np.savez(folder / "x.npz", x=x, y=np.arange(60) % 3)
    raw = tiny(
        model={"mlp": {"hidden": [6]}},
        data={"source": f"npz:{folder / 'x.npz'}", "batches": 20},
        defenses=["none"],
        attacks=["closed-form", {"inverting-gradients": {"steps": 20}}],
        gallery=5,
        budget={"trial_seconds": 20},
    )
    (folder / "plan.yaml").write_text(yaml.safe_dump(raw))
    return folder / "plan.yaml"


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
