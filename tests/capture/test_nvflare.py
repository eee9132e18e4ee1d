"""Captures of NVFlare rounds, through its own chains of filters: what came in and what goes out, and nothing broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("nvflare")

from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.fl_constant import FilterKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.utils.task_utils import apply_filters
from nvflare.app_common.app_constant import AppConstants

from leakgauge.capture.nvflare import CaptureFilter, GuardFilter
from leakgauge.guard import Refused
from leakgauge.models import mlp
from leakgauge.models.weights import read_model
from leakgauge.update import UPDATE, WEIGHTS, Update, UpdateKind


def a_round(filters: list[CaptureFilter], kind: str, *, incoming: bool = True) -> tuple[dict[str, Any], dict[str, Any]]:
    """One round as NVFlare's client runs it: the weights that were sent, and the parameters that it ended with."""
    torch.manual_seed(1)
    sent = {k: v.numpy() for k, v in mlp(shape=(1, 12), hidden=(6,), classes=3).state_dict().items()}
    context = FLContext()
    context.set_prop(ReservedKey.IDENTITY_NAME, "site-1", private=False, sticky=True)
    task = DXO(DataKind.WEIGHTS, data={k: v.copy() for k, v in sent.items()}).to_shareable()
    chains = {"train/in": filters if incoming else [], "train/out": filters}
    held = from_shareable(apply_filters("task_data_filters", task, context, chains, "train", FilterKey.IN)).data
    for value in held.values():
        value += 0.1  # trains in the arrays that it was given
    ended = {k: v.copy() for k, v in held.items()}
    data = ended if kind == DataKind.WEIGHTS else {k: ended[k] - sent[k] for k in sent}
    reply = DXO(kind, data=data, meta={MetaKey.NUM_STEPS_CURRENT_ROUND: 3}).to_shareable()
    reply.set_header(AppConstants.CURRENT_ROUND, 7)
    out = apply_filters("task_result_filters", reply, context, chains, "train", FilterKey.OUT)
    assert all((from_shareable(out).data[k] == data[k]).all() for k in data)
    return sent, ended


@pytest.mark.parametrize("kind", [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF])
def test_a_round_is_kept_as_it_went_out(kind: str, tmp_path: Path) -> None:
    sent, ended = a_round([CaptureFilter(str(tmp_path), examples=2)], kind)
    folder = tmp_path / "round-7-node-site-1"
    update = Update.load(folder / UPDATE)
    assert update.header.kind is UpdateKind.DELTA
    assert update.header.example_count == 2
    assert update.header.protocol["reply.steps"] == "3"
    for name, tensor in update.tensors.items():
        assert torch.allclose(tensor, torch.from_numpy(ended[name] - sent[name]), atol=1e-7)
    received = read_model(folder / WEIGHTS, "weights")
    assert all(torch.equal(received[name], torch.from_numpy(sent[name])) for name in sent)


def test_two_filters_bracket_a_defence_each_under_its_own_word(tmp_path: Path) -> None:
    a_round([CaptureFilter(str(tmp_path), side="raw"), CaptureFilter(str(tmp_path), side="wire")], DataKind.WEIGHTS)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["round-7-node-site-1-raw", "round-7-node-site-1-wire"]


def test_a_capture_that_fails_is_logged_and_the_round_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    a_round([CaptureFilter(str(tmp_path / "file"))], DataKind.WEIGHTS)
    a_round([CaptureFilter(str(tmp_path / "there"))], DataKind.WEIGHTS, incoming=False)
    assert "task_data_filters" in caplog.text
    assert caplog.text.count("no capture of a round of NVFlare") == 2
    assert not (tmp_path / "there").exists()


def test_an_update_without_the_stated_defence_does_not_pass() -> None:
    """Trained, and sent as it is, where clip and noise are stated: NVFlare answers with an error in its place."""
    guard = GuardFilter({"client-dp": {"norm": 1.0, "noise_multiplier": 1.0}})
    with pytest.raises(Refused, match="is not sent"):
        a_round([guard], DataKind.WEIGHTS)
    open_ = GuardFilter({"clip": {"norm": 100.0}})
    a_round([open_], DataKind.WEIGHT_DIFF)
