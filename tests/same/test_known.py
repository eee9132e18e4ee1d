"""The list of failures names tests that there are, each once."""

from __future__ import annotations

from same import test_blind, test_defenses, test_fourth, test_hidden, test_knowledge, test_loops, test_spellings
from same.known import LIST, known, pruned


def test_the_list_names_tests_once() -> None:
    lines = [line for line in LIST.read_text(encoding="utf-8").splitlines() if line.strip() and line[0] != "#"]
    assert len(lines) == len(set(lines)) == len(known())
    modules = (test_spellings, test_loops, test_defenses, test_knowledge, test_fourth, test_blind, test_hidden)
    assert {line.split("[")[0] for line in lines} <= {name for module in modules for name in vars(module)}
    assert all(cause for cause in known().values())


def test_what_passes_is_taken_off() -> None:
    assert pruned("# a\none\ntwo\n# b\nthree\n", {"one", "three"}) == "# a\ntwo\n"
    assert pruned("# a\none\n# b\nthree\n", {"one"}) == "# b\nthree\n"
    assert pruned("# a\none\n", {"one"}) == ""
