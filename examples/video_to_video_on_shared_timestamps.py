"""Two videos of the same scene: frames of both at the same moments, whatever their frame rates.

    python examples/video_to_video_on_shared_timestamps.py

The source's chain chooses the clip and writes down the times of its frames; the target's chain shows the same times.
Here the target is the source at half its size and half its frame rate. Needs
`pip install 'streaming-dataset[video,audio]'`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import sds
from sds.testing.videos import make_videos
from sds.transforms import EnsureFields, presets


def main(folder: Path) -> None:
    sources = make_videos(folder / "sources", 8, size=(72, 96), framerate=24)
    targets = make_videos(folder / "targets", 8, size=(36, 48), framerate=12)
    rows = [{"id": a["id"], "source": a["path"], "target": b["path"]} for a, b in zip(sources, targets, strict=True)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "pairs.parquet")
    dataset = sds.StreamingDataset(
        folder / "pairs.parquet",
        folder / "cache",
        columns_to_download=["source", "target"],
        index_col_name="id",
        shuffle_seed=0,
        transforms=[
            *presets.create_standard_video_pipeline(
                "source",
                num_frames=6,
                resolution=(64, 64),
                decode_kwargs={"framerate": 6.0, "frame_timestamps_output_field": "times"},
                output_field="source_video",
            ),
            *presets.create_standard_video_pipeline(
                "target",
                num_frames=6,
                resolution=(32, 32),
                decode_kwargs={
                    "frame_timestamps_input_field": "times",
                    "frame_timestamps_output_field": "target_times",
                },
                output_field="target_video",
            ),
            EnsureFields(["id", "source_video", "target_video", "times", "target_times"], drop_others=True),
        ],
    )
    with dataset, sds.StreamingDataLoader(dataset, batch_size=4) as loader:
        for batch in loader:
            apart = (batch["times"] - batch["target_times"]).abs().max()  # float64 [b, t] each
            source, target = (tuple(batch[f"{name}_video"].shape) for name in ("source", "target"))
            print(f"source {source}, target {target}, at most {apart:.3f} s apart")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
