"""Video and sound of the same moment: from one file, and from a video with a .wav beside it.

    python examples/audio_video.py

Makes a few small videos with sound, the sound as .wav files, and a table of both in a temporary folder. Needs
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
    records = make_videos(folder / "videos", 8)
    pq.write_table(pa.Table.from_pylist(records), folder / "videos.parquet")
    for source, columns, options in (
        ("one file", ["path"], {}),
        ("a .wav beside it", ["path", "wav"], {"audio_field": "wav"}),
    ):
        chain = presets.create_standard_joint_video_audio_pipeline(
            "path",
            num_frames=12,
            resolution=(48, 48),
            decode_kwargs={"framerate": 12.0, "frame_timestamps_output_field": "times"},
            target_audio_sr=16_000,
            **options,
        )
        dataset = sds.StreamingDataset(
            folder / "videos.parquet",
            folder / "cache",
            columns_to_download=columns,
            index_col_name="id",
            shuffle_seed=0,
            transforms=[*chain, EnsureFields(["id", "video", "audio", "times", "clip_duration"], drop_others=True)],
        )
        with dataset, sds.StreamingDataLoader(dataset, batch_size=4) as loader:
            for batch in loader:
                video, audio = batch["video"], batch["audio"]  # [b, t, 3, h, w], [b, 1, n]
                seconds = batch["clip_duration"][0]
                print(f"{source}: video {tuple(video.shape)}, sound {tuple(audio.shape)}, {seconds:.1f} s each")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
