"""What a layer's gradient spans of texts: a refusal says under which condition they come back, and there they do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("peft")
sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

import adapters

LENGTH, RANK = 6, 2


@pytest.mark.filterwarnings("ignore")  # by transformers and peft
@pytest.mark.parametrize("examples", [1, 2])
@pytest.mark.parametrize("later", [False, True], ids=["first step", "later step"])
@pytest.mark.parametrize("layout", adapters.LAYOUTS)
def test_the_rank_that_a_refusal_of_lora_names_would_do(
    monkeypatch: pytest.MonkeyPatch, layout: str, later: bool, examples: int
) -> None:
    """Behind attention to both sides the tokens of two texts are named, as none lies behind what came before alone."""
    monkeypatch.setattr(adapters, "VOCABULARY", 60)  # every one is tried where only the loss hears a token
    tokens, weights = LENGTH * examples, 3 if later and layout != "gpt2" else 1
    told = RANK * 3 - 2 if weights == 3 else RANK - 1
    refused = adapters.run(layout, RANK, LENGTH, examples, later=later)
    assert refused["status"] == "NOT_APPLICABLE"
    assert f"{tokens} tokens enter " in refused["message"]
    assert f"rank of {RANK} tells" in refused["message"] or f"3 weights of rank {RANK} tell" in refused["message"]
    assert f" at most {told} apart" in refused["message"]
    named = adapters.TOLD.search(refused["message"])
    assert named is not None, refused["message"]
    assert tokens < weights * int(named[1]) <= tokens + 5
    found = adapters.run(layout, int(named[1]), LENGTH, examples, later=later)
    here, held = found["set"].split(" of ")
    assert (here, found["wrong"]) == (held, 0), found["message"]
    if layout != "bert" or examples == 1:
        assert (found["status"], found["order"]) == ("EXACT", "all"), found["message"]
