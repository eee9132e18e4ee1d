"""What LoRA shows of texts: `python benchmarks/adapters.py` (needs transformers and peft).

A row for each layout, rank, length, batch and step, at toy size and fresh: what `lg.attack` reads of one update, beside
the condition under which texts come back: fewer tokens than directions are shown. At the first step B is zero, so that
A gets no gradient and each B shows `r` directions; later q, k and v, which share their input, show 3·r together.
Further rows have noise, bfloat16 and dropout. Where a refusal names the rank that it takes, a row of its own, `told`,
tries it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

import leakgauge as lg
from leakgauge.defenses import Defense, NoDefense, noise

TOLD = re.compile(r"it takes rank (\d+)")
ROWS = Path(__file__).parent / "results" / "adapters.jsonl"
VOCABULARY, WIDTH = 300, 128
LAYOUTS = {"gpt2": ["c_attn"], "llama": ["q_proj", "k_proj", "v_proj"], "bert": ["query", "key", "value"]}


def network(layout: str, rank: int, *, later: bool, dropout: float = 0.0) -> nn.Module:
    """An adapted one; `later`, B is as after some steps."""
    import peft
    import transformers as hf

    sizes = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4}
    base: Any
    if layout == "gpt2":
        base = hf.GPT2LMHeadModel(
            hf.GPT2Config(vocab_size=VOCABULARY, n_positions=48, n_embd=WIDTH, n_layer=2, n_head=4)
        )
    elif layout == "llama":
        base = hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, intermediate_size=256, max_position_embeddings=48))
    else:
        config = hf.BertConfig(**sizes, intermediate_size=256, max_position_embeddings=48, num_labels=3)
        base = hf.BertForSequenceClassification(config)
    kind = "SEQ_CLS" if layout == "bert" else "CAUSAL_LM"
    how = peft.LoraConfig(r=rank, lora_alpha=16, lora_dropout=dropout, target_modules=LAYOUTS[layout], task_type=kind)
    made = peft.get_peft_model(base, how)
    for name, parameter in made.named_parameters():
        if later and "lora_B" in name:
            nn.init.normal_(parameter, std=0.02)
    return made


def run(layout: str, rank: int, tokens: int, n: int, *, later: bool, extra: str = "") -> dict[str, Any]:
    """One row."""
    torch.manual_seed(0)
    net = network(layout, rank, later=later, dropout=0.1 if extra == "dropout" else 0.0)
    net = net.bfloat16() if extra == "bfloat16" else net
    parts: dict[str, Any] = {"text": lg.Text(tokens, VOCABULARY)}
    if layout == "bert":
        parts["y"] = lg.Classes(3)
    mode = "train" if extra == "dropout" else "eval"
    net.train(mode == "train")
    task = lg.Task.of_step(
        net, lambda m, b: m(input_ids=b["text"], labels=b.get("y", b["text"])).loss, parts, mode=mode
    )
    batch = task.layout.made_up(n, torch.Generator().manual_seed(1))
    defense: Defense = noise(relative=1e-3) if extra == "noise" else NoDefense()
    update = lg.clients.client_update(task, lg.clients.FedSGD(), batch, lg.Draws(0), defense=defense)
    knows = lg.Knowledge(example_count=n, local_training=lg.clients.FedSGD(), defense=defense)
    began = time.process_time()
    found = lg.attack(task, update, knows=knows)
    shown = rank * (3 if later and layout != "gpt2" else 1)
    row: dict[str, Any] = {"layout": layout, "rank": rank, "tokens": tokens, "n": n, "later": later, "extra": extra}
    row |= {"shown": shown, "seconds": round(time.process_time() - began, 1), "status": found.status.name}
    row |= {"message": found.message, "set": None, "wrong": None, "order": None}
    if found.tokens is not None:
        held = set(batch["text"].flatten().tolist())
        read = set(found.tokens.counts.sum(0).nonzero().flatten().tolist())
        row |= {"set": f"{len(read & held)} of {len(held)}", "wrong": len(read - held)}
        if found.tokens.order is not None:
            right = sorted(found.tokens.order.tolist()) == sorted(batch["text"].tolist())
            row["order"] = "all" if right else "wrong"
    return row


def cases() -> list[tuple[str, int, int, int, bool, str]]:
    plain = itertools.product(LAYOUTS, (8, 16, 32), (20, 40), (1, 2), (False, True), ("",))
    return [*plain, *((layout, 32, 20, 1, True, e) for layout in LAYOUTS for e in ("noise", "bfloat16", "dropout"))]


def told(row: dict[str, Any]) -> list[tuple[str, int, int, int, bool, str]]:
    """The case of the rank that a refusal names."""
    named = None if row["extra"] else TOLD.search(row["message"])
    case = row["layout"], row["tokens"], row["n"], row["later"]
    return [] if named is None else [(case[0], int(named[1]), *case[1:], "told")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROWS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    kept: list[dict[str, Any]] = []
    if options.out.exists():
        kept = [json.loads(line) for line in options.out.read_text(encoding="utf-8").splitlines()]
    there = {(r["layout"], r["rank"], r["tokens"], r["n"], r["later"], r["extra"]) for r in kept}
    queue = [*cases(), *(case for row in kept for case in told(row))]
    for layout, rank, tokens, n, later, extra in queue:
        if (layout, rank, tokens, n, later, extra) in there:
            continue
        there.add((layout, rank, tokens, n, later, extra))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            row = run(layout, rank, tokens, n, later=later, extra=extra)
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        queue += told(row)


if __name__ == "__main__":
    main()
