"""What a dataset will do, in words. Comes in: its options, index and plan. Goes out: text, a fact a line."""

from __future__ import annotations

from sds.dataset.options import Options
from sds.index import Index, IndexFacts
from sds.index.holding import HeldIndex
from sds.index.lazy import LazyIndex
from sds.index.lazy_choice import efficiency
from sds.plan import Plan
from sds.units import counted, format_bytes
from sds.world import World

__all__ = ["explain"]

_HELD = {
    "tar": "bytes of members, read where they lie in their shards",
    "parquet": "bytes in the table, read a row group at a time",
    "lance": "bytes in the table, taken by Lance",
}

_GOOD = 0.5  # of the time of a read
_FEW = 1_000_000  # rows that are no burden as a whole


def explain(options: Options, index: Index, plan: Plan, world: World, epoch: int = 0) -> str:
    """A line per decision: what is read, how many rows are left and why, in which order, by whom, cached how."""
    facts = index.facts
    rank, size = world.replica
    lines = [
        f"source: {options.source_text} ({_kind(facts)})",
        f"rows: {facts.rows:,} of {facts.rows_at_source:,} at the source",
    ]
    if options.index.sql_query is not None:
        share = facts.rows_after_query / facts.rows_at_source if facts.rows_at_source else 0.0
        lines.append(f"query: {facts.rows_after_query:,} rows ({share:.1%}): {options.index.sql_query.strip()}")
    if facts.num_other_files:
        named = ", ".join(index.columns_to_download)
        lines.append(f"other files: {facts.num_other_files} of {facts.num_sample_files}, in no column ({named})")
    if facts.rows_left_out:
        lines.append(
            f"left out: {facts.rows_left_out:,} rows without a value in {list(index.columns_to_download)} "
            "(allow_missing_columns=True keeps them)"
        )
    if options.index.max_size is not None:
        lines.append(f"max_size: {options.index.max_size:,}")
    if isinstance(index, LazyIndex):
        lines += _chunks(index)
    elif facts.kind == "provider":
        lines.append(f"index: none: {facts.path}.rows(ids) is asked for rows when they are needed")
        lines.append(
            f"plan: {'scan: rows are asked for in their order' if plan.seed is None else 'take: in any order'}"
        )
    else:
        lines.append(f"index: {'used where it lies' if facts.in_place else 'memory-mapped Arrow'}: {facts.path}")
        lines.append(f"plan: {_mapped(options, facts, plan)}")
    columns = list(index.columns_to_download)
    nothing = "parts of its shards, where it is remote" if facts.kind == "tensors" else "nothing (metadata only)"
    held = f" ({_HELD[index.held.kind]})" if isinstance(index, HeldIndex) and columns else ""
    lines.append(f"download: {columns or nothing}{held}")
    if options.memory is not None:
        lines.append(f"remember: {options.memory.path} ({options.memory.fingerprint})")
    if plan.weights is not None:
        how = "by a schedule" if plan.schedule is not None else "the same each epoch"
        column = options.index.weight_col_name
        lines.append(f"weights: column {column!r}, {how}: {plan.length(epoch):,} samples in epoch {epoch}")
    shuffle = "none, index order (scan)" if plan.seed is None else f"global, seed {plan.seed}, anew each epoch (take)"
    if plan.seed is not None and plan.chunk_sizes is not None:
        shuffle = (
            f"chunks, then rows inside windows of {plan.reach} chunks (lazy_index_reach), seed {plan.seed}, anew each "
            "epoch"
        )
    lines.append(f"shuffle: {shuffle}")
    if options.unaligned:
        length = plan.length(epoch)
        lines.append(f"partition: none: each rank goes through all {length:,} samples, in an order of its own")
    else:
        how = "interleaved" if plan.shares == 1 else f"node-affine: {plan.shares} shares of rows that stay with a node"
        lines.append(f"partition: rank {rank} of {size}: {-(-plan.length(epoch) // size):,} samples an epoch, {how}")
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


def _mapped(options: Options, facts: IndexFacts, plan: Plan) -> str:
    """Scan or take, for a table whose rows are all as near."""
    query = "" if options.index.sql_query is None else f"the query ran once and left {facts.rows_after_query:,} rows; "
    if plan.seed is None:
        return f"scan: {query}rows are read in their order (shuffle_seed shuffles them)"
    return f"take: {query}any row of a mapped table costs the same (shuffle_seed=None reads them in their order)"


def _chunks(index: LazyIndex) -> list[str]:
    """What a lazy index does, and what could be better."""
    manifest, choice = index.manifest, index.manifest.choice
    sizes, chunk = index.chunk_sizes, manifest.chunk_size
    layout, reading = manifest.layout, index.reading
    num_bytes = format_bytes(layout.num_bytes)
    lines = [
        f"index: lazy, {counted(len(sizes), 'chunk')} of {counted(chunk, 'row')}, {num_bytes} uncompressed in "
        f"{counted(len(layout.footers), 'file')}; {manifest.rows_read:,} rows were looked at to count them "
        f"({manifest.facts.path})",
        f"plan: {choice.kind}: {choice.why}",
    ]
    if choice.kind == "scan" and manifest.sql is not None:
        lines[-1] += "; lazy_index_plan='take' copies the rows that are left once, and maps them"
    if choice.kind == "take":
        lines.append(
            "reading: the rows that are left were copied once, and are mapped (lazy_index_plan='scan' does not)"
        )
        return lines
    empty = int((sizes == 0).sum())
    share = efficiency(choice, chunk)
    lines.append(
        f"reading: {reading.num_threads} chunks at once, at most {reading.num_chunks} in a process; {share:.1%} of a "
        f"read is reading{f'; {empty} chunks have no row left and are never read' if empty else ''}"
    )
    if share < _GOOD:
        lines.append("advice: larger chunks (lazy_index_chunk_size) would be read faster")
    largest = max(max(footer.group_rows, default=0) for footer in layout.footers)
    if not reading.is_sequential and largest > 2 * chunk:
        is_text = any(footer.lines is not None for footer in layout.footers)
        groups, other = ("blocks of text", "") if is_text else ("row groups", ", or files with smaller row groups,")
        lines.append(
            f"advice: {groups} have up to {largest:,} rows, and are decoded about {largest // chunk} times an epoch: "
            f"lazy_index_chunk_size={largest}{other} would save that"
        )
    if manifest.sql is not None and len(index) < _FEW:
        lines.append(
            f"advice: few rows are left ({len(index):,}): without lazy_index_chunk_size they are shuffled as a whole, "
            "once the query ran"
        )
    return lines


def _kind(facts: IndexFacts) -> str:
    counts = ((facts.num_index_files, "index file"), (facts.num_sample_files, "sample file"))
    files = ", ".join(counted(count, kind) for count, kind in counts if count)
    return f"{facts.kind}: {files}" if files else facts.kind
