"""Clips of videos: eight frames from a random place of each, twelve a second, resized and batched.

    python examples/video.py

Makes a few small videos and a table of them in a temporary folder. With your own: give the table's path or URL instead,
and name its column with the videos. Needs `pip install 'streaming-dataset[video,audio]'`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import sds
from sds.testing.videos import make_videos
from sds.transforms import FilterFields, presets


def main(folder: Path) -> None:
    records = make_videos(folder / "videos", 12)
    pq.write_table(pa.Table.from_pylist(records), folder / "videos.parquet")
    dataset = sds.StreamingDataset(
        folder / "videos.parquet",
        folder / "cache",
        columns_to_download=["path"],
        index_col_name="id",
        data_type="video",
        shuffle_seed=0,
        transforms=[
            *presets.create_standard_video_pipeline(
                "path",
                num_frames=8,
                resolution=(64, 64),
                decode_kwargs={"framerate": 12, "frame_timestamps_output_field": "times"},
            ),
            FilterFields(fields_to_keep=["id", "video", "times", "caption"]),
        ],
    )
    with dataset, sds.StreamingDataLoader(dataset, batch_size=4) as loader:
        for epoch in range(2):
            for batch in loader:
                video, times = batch["video"], batch["times"]  # uint8 [b, t, 3, h, w], float64 [b, t]
                spans = ", ".join(f"{each[0]:.2f}-{each[-1]:.2f} s" for each in times)
                print(f"epoch {epoch}: {tuple(video.shape)} {video.dtype}: {spans}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
