"""The half to fit to and the half held out."""

from __future__ import annotations

from collections import Counter
from zlib import crc32

from hypothesis import given
from hypothesis import strategies as st

from planner.measured.values import Run, fitted_half
from tests.measured.examples import run


def names(runs: tuple[Run, ...]) -> list[str]:
    """Ids in order."""
    return [entry.id for entry in runs]


def test_every_second_model_by_checksum() -> None:
    """All runs of a model are in the same half, in the order of the table."""
    models = ("a", "b", "c", "d", "e")
    runs = [run(f"{model}{index}", model) for index in range(2) for model in models]
    fitted, held_out = fitted_half(runs)
    chosen = sorted(models, key=lambda name: crc32(name.encode()))[::2]
    assert names(fitted) == [f"{model}{index}" for index in range(2) for model in models if model in chosen]
    assert len({entry.model.name for entry in held_out}) == 2
    assert names(held_out) == sorted(names(held_out), key=lambda name: (name[1], name[0]))


def test_the_halves_are_stable() -> None:
    """Written down: a fit of today must not see tomorrow what was held out."""
    runs = [run(model, model) for model in ("gpt2-345m", "llama-7b", "megatron-18b", "opt-350m")]
    fitted, held_out = fitted_half(runs)
    assert names(fitted) == ["llama-7b", "opt-350m"]
    assert names(held_out) == ["gpt2-345m", "megatron-18b"]


def test_a_source_with_one_model_is_split_by_run() -> None:
    """Else one half would lack the source."""
    runs = [run(f"x{index}") for index in range(5)]
    fitted, held_out = fitted_half(runs)
    assert names(fitted) == sorted(sorted(names(tuple(runs)), key=lambda name: crc32(name.encode()))[::2])
    assert len(held_out) == 2


def test_a_source_that_is_mostly_one_model_is_split_by_run() -> None:
    """By model, all of the large model's runs would be in one half."""
    runs = [run(f"x{index}", "large" if index < 4 else f"m{index}") for index in range(7)]
    fitted, held_out = fitted_half(runs)
    assert set(names(fitted)) == set(sorted(names(tuple(runs)), key=lambda name: crc32(name.encode()))[::2])
    assert (len(fitted), len(held_out)) == (4, 3)


def test_half_of_the_runs_is_not_more_than_half() -> None:
    """A source whose largest model has exactly half of its runs is split by model."""
    runs = [run(f"x{index}", "large" if index < 3 else f"m{index}") for index in range(6)]
    fitted, held_out = fitted_half(runs)
    models = [{entry.model.name for entry in half} for half in (fitted, held_out)]
    assert not models[0] & models[1]
    assert [len(half) for half in models] == [2, 2]


def test_sources_are_split_on_their_own() -> None:
    """More runs of one source move nothing of another."""
    lab = [run(f"x{index}", f"m{index}") for index in range(4)]
    others = [run(f"y{index}", f"m{index}", source="other") for index in range(7)]
    alone, _ = fitted_half(lab)
    together, _ = fitted_half([*others, *lab])
    assert [entry for entry in together if entry.source == "lab"] == list(alone)


def test_nothing_has_two_empty_halves() -> None:
    """No runs, no halves."""
    assert fitted_half([]) == ((), ())


@given(st.lists(st.tuples(st.sampled_from("stu"), st.sampled_from("abcdef")), max_size=30))
def test_halves_are_a_partition(kinds: list[tuple[str, str]]) -> None:
    """Every run is in one half; models, or runs of mostly one model, differ in number by one at most."""
    runs = [run(str(index), model, source=source) for index, (source, model) in enumerate(kinds)]
    fitted, held_out = fitted_half(runs)
    assert sorted(names((*fitted, *held_out))) == sorted(str(index) for index in range(len(runs)))
    for source in {entry.source for entry in runs}:
        halves = [[entry for entry in half if entry.source == source] for half in (fitted, held_out)]
        models = Counter(entry.model.name for entry in runs if entry.source == source)
        by_run = 2 * max(models.values()) > models.total()
        sizes = [len({entry.id if by_run else entry.model.name for entry in half}) for half in halves]
        assert by_run or not {entry.model.name for entry in halves[0]} & {
            entry.model.name for entry in halves[1]
        }
        assert sizes[0] - sizes[1] in (0, 1)
