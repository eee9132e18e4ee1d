"""Texts: words to numbers and back, and what an audit, its page and its gate say of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from leakgauge.clients import FedAvg
from leakgauge.compute import Compute
from leakgauge.data import Tokens, open_source, spec
from leakgauge.defenses import laplace
from leakgauge.errors import InputError
from leakgauge.report.html import render
from leakgauge.study.deal import Key
from leakgauge.study.plan import resolve_plan
from leakgauge.study.trial import run_trial
from texts import CLASSES, VOCABULARY, Bag, Decoder, Encoder, texts

CSV = 'who,text,ill\nanna,"Anaemia, mild; anaemia!",yes\nbert,No complaint.,no\n'


def source(folder: Path, content: str = CSV, **options: Any) -> Any:
    (folder / "t.csv").write_text(content, encoding="utf-8")
    return open_source(f"text:{folder / 't.csv'}", **{"ids": ["who"], "length": 8, **options})


def test_texts_come_back_in_words(tmp_path: Path) -> None:
    found = source(tmp_path)
    assert found.in_words(found.read([0, 1]).inputs) == [
        ["anaemia", ",", "mild", ";", "anaemia", "!"],
        ["no", "complaint", "."],
    ]
    assert found.words[:3] == ["<pad>", "<unk>", "anaemia"]  # the most frequent first
    assert (found.labels.tolist(), found.names([1])) == ([1, 0], ["bert"])
    data = spec(found)
    assert (data.shape, data.vocabulary, data.padding, data.high) == ((8,), 10, 0, 9)


def test_a_vocabulary_decides_the_numbers_and_long_texts_are_cut(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\nmild\n[UNK]\nanaemia\n")
    found = source(tmp_path, vocabulary=str(tmp_path / "vocab.txt"), padding="[PAD]", unknown="[UNK]", length=4)
    assert found.read([0, 1]).inputs.tolist() == [[3, 2, 1, 2], [2, 2, 2, 0]]
    assert [p.name for p in found.files] == ["t.csv", "vocab.txt"]


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        (CSV, {"column": "note"}, "data.column: names 'note', and the columns are who, text, ill"),
        (CSV, {"target": "sick"}, "data.target: names 'sick'"),
        (CSV, {"length": 0}, "data.length: is 0"),
        (CSV, {"pattern": "("}, "data.pattern: is no regular expression"),
        (CSV, {"vocabulary": "missing.txt"}, "data.vocabulary: cannot read 'missing.txt'"),
        (CSV + "carl, ,no\n", {}, "line 4 has a text without a token; leave it out"),
        ("who,text,ill\n", {}, "holds no rows"),
    ],
)
def test_what_is_no_text_is_one_line(tmp_path: Path, text: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        source(tmp_path, text, **options)


def test_tokens_that_no_word_has_are_refused() -> None:
    with pytest.raises(InputError, match=r"inputs: are not all in \[0, 2\)"):
        Tokens(inputs=torch.tensor([[0, 2]]), labels=torch.tensor([0]), words=["a", "b"])
    with pytest.raises(InputError, match=r"inputs: are torch.float32"):
        Tokens(inputs=torch.zeros(1, 2), labels=torch.tensor([0]), words=["a", "b"])


def planned(model: Any, **changes: Any) -> Any:
    ids = texts(60)
    data = Tokens(inputs=ids, labels=torch.arange(60) % CLASSES, words=[f"w{i}" for i in range(VOCABULARY)], padding=0)
    dealt = {"source": data, "batch": 1, "batches": 5} | changes.pop("data", {})
    return resolve_plan({"model": model, "data": dealt, "gallery": 20, **changes})


def report(plan: Any, **options: Any) -> dict[str, Any]:
    """All trials in this process, as an audit would write them."""
    from leakgauge.study.judging.records import read_trial
    from leakgauge.study.judging.verdict import VERDICT, verdict

    trials = [run_trial(plan, key, compute=Compute(), **options).record for key in plan.trials()]
    judged = verdict([read_trial(t) for t in trials], plan.keys.gate)
    return {"trials": trials, "verdict": VERDICT.dump_python(judged, mode="json"), "config": {"name": "texts"}}


def rendered(found: dict[str, Any]) -> str:
    from leakgauge.study.judging.records import read_trial
    from leakgauge.study.judging.verdict import verdict

    trials = [read_trial(t) for t in found["trials"]]
    return render({"config": found["config"]}, verdict(trials, None), trials, {})


def test_one_text_in_order_is_exposed_word_for_word() -> None:
    torch.manual_seed(0)
    found = report(planned(Encoder(), gate={"identified": {"max": 0.5}}))
    trial, finding = found["trials"][0], found["verdict"]["findings"][0]
    assert trial["words"]["true"] == trial["words"]["read"]
    assert trial["words"]["form"] == "in order"
    assert trial["tokens"]["in_place"] == 1
    assert (finding["level"], finding["recovered"], finding["tokens"]["mean"]) == ("exposed", 5, 1)
    assert finding["tokens"]["baseline"] < 0.7
    assert (
        "the same tokens and no others from 5 of 5 clients, as often as they occur from 5, in order from 5"
        in finding["sentence"]
    )
    assert found["verdict"]["gate"]["passed"] is False
    page = rendered(found)
    assert "100\u00a0%</b> of its tokens" in page
    assert '<tr class="same"><th scope="row">text; read: in order</th>' in page


def test_four_pooled_texts_are_told_apart_and_counts_only_keeps_no_word() -> None:
    torch.manual_seed(0)
    plan = planned(Bag(), data={"batch": 4, "batches": 2})
    key = Key(0, 0, 0, 0, 0, 0)
    record = run_trial(plan, key, compute=Compute()).record
    assert record["tokens"]["exact_counts"]
    assert [sorted(t) for t in record["words"]["true"]] == record["words"]["read"]
    assert record["words"]["form"] == "its tokens"
    assert all(record["scores"]["identified"])
    bare = run_trial(plan, key, compute=Compute(), counts_only=True).record
    assert set(bare["words"]) == {"match"}


def test_four_texts_in_order_stand_beside_their_own() -> None:
    torch.manual_seed(0)
    plan = planned(Decoder(), data={"batch": 4, "batches": 2})
    record = run_trial(plan, Key(0, 0, 0, 0, 0, 0), compute=Compute()).record
    assert record["words"]["form"] == "in order"
    assert [[w for w in text if w != "w0"] for text in record["words"]["read"]] == record["words"]["true"]
    assert record["scores"]["exact"] == [True] * 4
    assert record["tokens"]["in_place"] == 1
    assert record["tokens"]["exact_counts"]


@pytest.mark.parametrize("client", ["fedsgd", FedAvg(lr=0.1, epochs=2)], ids=repr)
def test_texts_behind_noise_that_is_not_read_through_are_neither_guessed_nor_cleared(client: Any) -> None:
    """Of a sum of two draws the attacker knows no distribution; one draw of Laplace noise is read through."""
    torch.manual_seed(0)
    plan = planned(
        Bag(),
        clients=[client],
        defenses=[[laplace(relative=1e-3), laplace(relative=1e-3)]],
        gate={"identified": {"max": 1.0}},
        data={"batches": 1},
    )
    found = report(plan)
    own = [f for f in found["verdict"]["findings"] if not f["control"]]
    assert [f["level"] for f in own] == ["not_applicable"]
    assert found["verdict"]["level"] == "inconclusive"
    assert found["verdict"]["gate"]["passed"] is False
    assert all(t["control"] or "tokens" not in t for t in found["trials"])


def test_a_limit_in_decibels_says_nothing_of_texts() -> None:
    torch.manual_seed(0)
    found = report(planned(Bag(), gate={"psnr": {"worst": 20}}, data={"batches": 1}))
    assert any("texts have no PSNR" in reason for reason in found["verdict"]["gate"]["reasons"])
