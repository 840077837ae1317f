"""What a dataset will do, in words. Comes in: its options, index and plan. Goes out: text, a fact a line."""

from __future__ import annotations

from sds.dataset.options import Options
from sds.index import Index, IndexFacts
from sds.plan import Plan
from sds.units import format_bytes
from sds.world import World

__all__ = ["explain"]


def explain(options: Options, index: Index, plan: Plan, world: World) -> str:
    """A line per decision: what is read, how many rows are left and why, in which order, by whom, cached how."""
    facts = index.facts
    rank, size = world.replica
    lines = [
        f"source: {options.source_text} ({facts.kind}: {_files(facts)})",
        f"rows: {facts.rows} of {facts.rows_at_source} at the source",
    ]
    if options.index.sql_query is not None:
        share = facts.rows_after_query / facts.rows_at_source if facts.rows_at_source else 0.0
        lines.append(f"query: {facts.rows_after_query} rows ({share:.1%}): {options.index.sql_query.strip()}")
    if facts.rows_left_out:
        lines.append(
            f"left out: {facts.rows_left_out} rows without a value in {list(index.columns_to_download)} "
            "(allow_missing_columns=True keeps them)"
        )
    if options.index.max_size is not None:
        lines.append(f"max_size: {options.index.max_size}")
    lines.append(f"index: {'used where it lies' if facts.in_place else 'memory-mapped Arrow'}: {facts.path}")
    columns = list(index.columns_to_download)
    nothing = "parts of its shards, where it is remote" if facts.kind == "tensors" else "nothing (metadata only)"
    lines.append(f"download: {columns or nothing}")
    if options.memory is not None:
        lines.append(f"remember: {options.memory.path} ({options.memory.fingerprint})")
    shuffle = "none, index order (scan)" if plan.seed is None else f"global, seed {plan.seed}, anew each epoch (take)"
    lines.append(f"shuffle: {shuffle}")
    if options.unaligned:
        lines.append(f"partition: none: each rank goes through all {plan.length(0)} samples, in an order of its own")
    else:
        how = "interleaved" if plan.shares == 1 else f"node-affine: {plan.shares} shares of rows that stay with a node"
        lines.append(f"partition: rank {rank} of {size}: {-(-plan.length(0) // size)} samples an epoch, {how}")
    fetch = options.fetch
    limit = "no limit" if fetch.limit is None else f"limit {format_bytes(fetch.limit)}"
    if fetch.ttl_s is not None:
        limit += f", files older than {fetch.ttl_s:g} s are fetched again"
    if fetch.revalidate != "never":
        limit += f", versions are asked for {'once per run' if fetch.revalidate == 'run' else 'always'}"
    ahead = f"{options.prefetch} samples"
    if fetch.ahead_bytes is not None:
        ahead += f", {format_bytes(fetch.ahead_bytes)}"
    lines.append(f"cache: {fetch.dst} ({limit}, policy {fetch.policy}); prefetch {ahead}")
    return "\n".join(lines)


def _files(facts: IndexFacts) -> str:
    counts = ((facts.num_index_files, "index file"), (facts.num_sample_files, "sample file"))
    return ", ".join(f"{count} {kind}{'' if count == 1 else 's'}" for count, kind in counts if count)
