"""Sources that nothing was fitted to: what the shipped constants say of runs that were stated after the fit."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from statistics import fmean

from planner.calibration.file import shipped
from planner.measured.predictions import SourceTruth, Truth, predict, truth
from planner.measured.table import load_table
from tools.accuracy.material import bullets, correlation, markdown, paragraph, share, signed

RUNS = Path(__file__).with_name("unseen") / "runs.csv"
WHAT = {
    "aleph-alpha": "Llama 13B, 30B and 65B on 32 to 256 A100, every layout, arXiv:2311.05610",
    "flagperf": "READMEs of FlagOpen/FlagPerf: 1 to 440 A800, A100, H800 and H100, Megatron and DeepSpeed",
    "rocm-te-issues": "issues of ROCm/TransformerEngine: 1 and 8 MI300X, H100 and H200, fp8, preliminary",
    "atorch": "README of ATorch: Llama 2 7B on 8 to 64 A100, FSDP, adapters, tensor parallelism in pipelines",
    "lumi": "logs of Megatron-DeepSpeed on LUMI: 175B on 128 to 2,048 dies of MI250X",
    "olmo-core": "README of OLMo-core: 7B and 13B on H100, bf16 and fp8",
    "llama-3-herd": "arXiv:2407.21783, table 4: 405B on 8,192 and 16,384 H100",
    "hf-hardware": "documentation of transformers: two Titan RTX with and without NVLink",
    "mli": "mli/transformers-benchmarks: an RTX 3090 Ti",
}
CAUSES = (
    "Errors of Aleph Alpha grow with tensor parallelism times replicas, to 35 %: its nodes are stated with eight cards,"
    " and behave like nodes with one; its loss may hold whole logits on every device.",
    "Megatron-Core of spring 2024 on H100 (six runs of FlagPerf) is 17 to 26 % slower than what its kernels have taken"
    " since; the same scripts on A800 are right to 4 %.",
    "No run on MI250X is among those fitted to, and none with ROCm 5.",
    "The pipeline of Llama 3 405B is interleaved in a way that the paper does not say; as stated here its two runs lack"
    " memory.",
)
HEADINGS = ("source ", "what ", "runs", "mean", "median", "bias", "inside", "Spearman")


@cache
def found() -> Truth:
    """What the shipped constants say of them."""
    return truth(predict(load_table(RUNS).runs, shipped()))


def unseen_section() -> str:
    """A line for each source."""
    total = found().total
    assert total is not None
    many = f"{total.errors.runs} runs of {len(found().sources)} more sources"
    alike = share(fmean(entry.coverage for entry in found().sources))
    head = (
        f"{many} were stated and predicted after the constants were fitted, and none of them is fitted to",
        "(`tools/accuracy/unseen`): what a run of yours can expect, with devices and programs that nobody here",
        "chose. Inside is the share within the error bar that a prediction prints, one standard error, which holds",
        f"68 % of runs whose sources count alike: of these {alike}. Where they are off:",
    )
    lines = [_line(entry) for entry in (*found().sources, total)]
    return "\n".join((paragraph(*head), bullets(CAUSES), markdown(HEADINGS, lines)))


def _line(entry: SourceTruth) -> tuple[str, ...]:
    errors = entry.errors
    cells = share(errors.mean), share(errors.median), signed(errors.bias), share(entry.coverage)
    what = WHAT.get(entry.source, "")
    return (entry.source, what, str(errors.runs), *cells, correlation(entry.rank_correlation))
