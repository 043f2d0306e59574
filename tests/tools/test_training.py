"""Whole training steps of tiny models on this processor."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from planner.errors import UsageError
from planner.model.spec import ModelSpec
from tests.worlds import model

torch = pytest.importorskip("torch")


from planner.measure.backend import Backend, open_backend, out_of_memory  # noqa: E402
from tools.benchmarks.training import Configuration, Training, fits, job, train  # noqa: E402

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def cpu() -> Backend:
    """The processor."""
    return open_backend("cpu")


@pytest.fixture
def alone() -> Iterator[None]:
    """What is made to train without being measured is in a job."""
    with job():
        yield


def small(precision: str = "fp32", **changes: Any) -> ModelSpec:
    """A model whose steps take milliseconds."""
    return model(4, hidden=64, head_dim=16, ffn=256, precision=precision, dropout=False, **changes)


@pytest.mark.parametrize(("precision", "states"), [("fp32", 16), ("bf16", 18)])
def test_a_step_is_measured(cpu: Backend, precision: str, states: int) -> None:
    """Seconds, and model states as the target torch counts them with some activations on top."""
    spec = small(precision)
    found = train(cpu, Configuration(model=spec, micro_batch=2))
    assert found is not None
    assert found.step_seconds > 0
    assert states * spec.parameters < found.peak_bytes < 2 * states * spec.parameters
    assert found.reserved_bytes is None


def test_more_sequences_need_more_memory_and_accumulation_does_not(cpu: Backend) -> None:
    """Activations belong to one micro-batch, sums of gradients to all after the first."""
    peaks = []
    for size, batch in ((1, 2), (1, 4), (4, 8)):
        spec = small()
        spec = spec.model_copy(update={"training": spec.training.model_copy(update={"global_batch": batch})})
        found = train(cpu, Configuration(model=spec, micro_batch=size))
        assert found is not None
        peaks.append(found.peak_bytes)
    assert peaks[0] == pytest.approx(peaks[1], rel=0.01)
    assert peaks[2] > 1.1 * peaks[0]


@pytest.mark.slow
def test_recomputation_saves_memory_and_changes_no_gradient(cpu: Backend) -> None:
    """Selective drops the scores of unfused attention, full everything inside a layer."""
    spec = small(attention="unfused")
    peaks: dict[str, float] = {}
    gradients: dict[str, list[Any]] = {}
    for recompute in ("none", "selective", "full"):
        asked = Configuration(model=spec, micro_batch=4, recompute=recompute)
        found = train(cpu, asked)
        assert found is not None
        peaks[recompute] = found.peak_bytes
        torch.manual_seed(0)
        with job():
            once = Training(cpu, asked)
            once.backward()
            gradients[recompute] = [weight.grad.to_local() for weight in once.model.parameters()]
    assert peaks["full"] < peaks["selective"] < peaks["none"]
    for recompute in ("selective", "full"):
        for one, other in zip(gradients["none"], gradients[recompute], strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.usefixtures("alone")
def test_weights_are_trained_in_fp32_and_compute_in_bf16(cpu: Backend) -> None:
    """As the example for torch does it; no gradient outlives a step."""
    training = Training(cpu, Configuration(model=small("bf16"), micro_batch=2))
    before = [weight.to_local().clone() for weight in training.model.parameters()]
    computed = training.model(training.tokens[:, :-1]).dtype
    for _ in range(3):
        training.step()
    assert computed == torch.bfloat16
    for weight, old in zip(training.model.parameters(), before, strict=True):
        assert (weight.dtype, weight.grad) == (torch.float32, None)
        assert not torch.equal(weight.to_local(), old)


@pytest.mark.usefixtures("alone")
def test_accumulated_micro_batches_are_one_batch(cpu: Backend) -> None:
    """Each weighs the same, so that equal ones give the gradient of one of them."""
    sums = []
    for batch in (2, 4):
        spec = small("bf16")
        spec = spec.model_copy(update={"training": spec.training.model_copy(update={"global_batch": batch})})
        torch.manual_seed(0)
        training = Training(cpu, Configuration(model=spec, micro_batch=2))
        training.backward()
        sums.append([weight.grad.to_local().clone() for weight in training.model.parameters()])
    for one, other in zip(*sums, strict=True):
        torch.testing.assert_close(one, other, rtol=0.02, atol=1e-4)


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, MemoryError])
def test_out_of_memory_is_an_answer_that_leaves_nothing_behind(
    cpu: Backend, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    """The frames that held the tensors are gone before the device is emptied."""
    alive: list[weakref.ref[Training]] = []
    at_free: list[bool] = []

    def fails(self: Training) -> None:
        alive.append(weakref.ref(self))
        raise kind("out of memory")

    def free(self: Backend) -> None:
        at_free.append(any(item() is not None for item in alive))

    monkeypatch.setattr(Training, "step", fails)
    monkeypatch.setattr(Backend, "free", free)
    asked = Configuration(model=small(), micro_batch=1)
    assert train(cpu, asked) is None
    assert not fits(cpu, asked)
    assert at_free == [False, False]


def test_other_errors_are_not_swallowed(cpu: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only memory is a measurement."""
    monkeypatch.setattr(Training, "step", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(cpu, Configuration(model=small(), micro_batch=1))


def test_what_trains_fits(cpu: Backend) -> None:
    """Two steps are enough to know."""
    assert fits(cpu, Configuration(model=small(), micro_batch=1))


def test_formats_that_need_scaling_are_refused(cpu: Backend) -> None:
    """With the ones that are not."""
    with pytest.raises(UsageError, match="fp16 is not measured"):
        train(cpu, Configuration(model=small("fp16"), micro_batch=1))


@pytest.mark.parametrize(
    "said",
    [
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes",
        "CUDA error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
)
def test_every_way_to_say_out_of_memory_is_understood(said: str) -> None:
    """Beside torch's own error; another error of the device is not one."""
    assert out_of_memory(RuntimeError(said))
    assert not out_of_memory(ValueError(said))
    assert not out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))
