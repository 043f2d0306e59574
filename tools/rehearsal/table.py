"""The rehearsal as a table of its rows and of its summary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tools.rehearsal.rehearse import Row, even_factor, mean_error, rank_correlation, regret


def markdown(rows: Sequence[Row]) -> str:
    """Both tables."""
    return "\n".join([*_rows(rows), "", *_summary(rows), ""])


def _rows(rows: Sequence[Row]) -> Iterator[str]:
    yield "| cluster | plan | predicted s | measured s | ± | error |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        numbers = (
            f"{row.predicted_seconds:.3f} | {row.measured_seconds:.3f} | {row.spread:.0%} | {row.error:+.1%}"
        )
        yield f"| {row.cluster} | {row.plan} | {numbers} |"


def _summary(rows: Sequence[Row]) -> Iterator[str]:
    yield "| cluster | plans | Spearman | regret | mean error | faster than equal batches: predicted | measured |"
    yield "|---|---|---|---|---|---|---|"
    for name in dict.fromkeys(row.cluster for row in rows):
        mine = [row for row in rows if row.cluster == name]
        factors = even_factor(mine)
        faster = " | ".join(f"{factor:.2f}" for factor in factors) if factors else "| "
        told = f"{rank_correlation(mine):.2f} | {regret(mine):.1%} | {mean_error(mine):.1%}"
        yield f"| {name} | {len(mine)} | {told} | {faster} |"
