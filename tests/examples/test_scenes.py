"""Scenes that people have: each says what the strongest attack finds, and what nobody tried."""

from __future__ import annotations

import runpy

import pytest

from docs.pages import ROOT


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # by peft
@pytest.mark.parametrize(
    ("name", "needs", "words"),
    [
        ("credit", (), ["8 of 8 examples recovered", "kinds: equal [1.0, 1.0, 1.0, 1.0]"]),
        ("vital_signs", (), ["2 of 2 examples recovered", "worse: equal [1.0]"]),
        *(
            pytest.param(*scene, marks=pytest.mark.slow)
            for scene in [
                (
                    "chest_xray",
                    ("monai",),
                    ["Client images were singled out in 1 of 1 setting", "findings: equal [1.0]"],
                ),
                ("adapters", ("transformers", "peft"), ["in order from 1", "text: equal [1.0]"]),
                ("unetr", ("monai",), ["1 of 1 examples recovered"]),
            ]
        ),
    ],
)
def test_a_scene_prints_what_was_found_and_what_nobody_tried(
    name: str, needs: tuple[str, ...], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for package in needs:
        pytest.importorskip(package, reason=f"the scene needs {package}")
    scene = ROOT / "examples" / "scenes" / f"{name}.py"
    assert len(scene.read_text(encoding="utf-8").splitlines()) <= 70
    runpy.run_path(str(scene), run_name="__main__")
    said = capsys.readouterr().out
    assert all(one in said for one in words), said
    assert "Nobody tried: membership inference" in said
