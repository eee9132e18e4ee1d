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
    """Behind attention to both sides too, where no layer sees a token and those before it alone."""
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
    assert (found["status"], found["order"]) == ("EXACT", "all"), found["message"]


@pytest.mark.filterwarnings("ignore")
def test_where_some_weights_show_few_directions_it_takes_a_higher_rank() -> None:
    """Attention that is nearly even gives the values' error signals few directions, whatever the rank."""
    refused = adapters.run("bert", 15, 40, 1, later=True)
    assert refused["status"] == "NOT_APPLICABLE"
    assert "40 tokens enter " in refused["message"]
    assert "; its gradients show 38 directions; it takes rank 17 or more" in refused["message"]
    found = adapters.run("bert", 17, 40, 1, later=True)
    assert (found["status"], found["set"], found["wrong"]) == ("EXACT", "37 of 37", 0)


@pytest.mark.filterwarnings("ignore")
def test_no_tokens_are_named_that_fit_by_chance() -> None:
    """80 tokens in 82 directions, of which rounding hides some: 215 of the other 230 seemed to lie in their span."""
    found = adapters.run("bert", 82, 40, 2, later=False)
    assert not found["wrong"]
    assert "80 tokens enter " in found["message"]
    assert "; its gradients show 76 directions" in found["message"]
