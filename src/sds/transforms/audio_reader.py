"""Audio files -> samples of a span, float32 [c, t] in [-1, 1], at the file's own rate.

Comes in: a path or bytes. WAV, FLAC, MP3, Ogg, AIFF, AU and CAF go through libsndfile, the rest (AAC, MP4, Matroska,
and the sound of videos) through PyAV. A span read after a seek has the samples that reading from the start gives.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from sds.transforms.container import Media, open_container, open_media, waited_s
from sds.transforms.options import load_package

if TYPE_CHECKING:
    import av.container
    from av.audio.frame import AudioFrame

__all__ = ["AudioReader", "open_audio", "open_track"]

Waveform = npt.NDArray[np.float32]

# first bytes of what libsndfile reads; MPEG audio has no name, only a sync word and a layer that is not 0 (that is AAC)
_MAGIC = (b"RIFF", b"RF64", b"fLaC", b"OggS", b"ID3", b"FORM", b".snd", b"caff", b"riff")
_PREROLL_S = 0.5  # decoded before a span: what codecs with overlapping frames need to be exact
_MAX_GAP_S = 0.02  # two frames may lie so far from where their times say: those are rounded
_SCALES = {"u8": (128.0, 128.0), "s16": (0.0, 32768.0), "s32": (0.0, 2147483648.0)}


class AudioReader(Protocol):
    """An open audio file."""

    sample_rate: int
    num_channels: int
    num_samples: int  # of each channel; PyAV's may be a little off

    def read(self, start: int, count: int) -> Waveform:
        """Samples [c, n] from `start` on; fewer than `count` where the file ends."""
        ...


@contextlib.contextmanager
def open_audio(media: Media, timeout_s: float = 60.0) -> Iterator[AudioReader]:
    """Opens an audio file for as long as the block runs. Raises whatever the library does for what is none."""
    with contextlib.ExitStack() as stack:
        file = _open_sndfile(media) if _is_for_sndfile(media) else None
        if file is not None:
            yield _SndfileReader(stack.enter_context(file), media)
        else:
            yield stack.enter_context(open_track(media, None, timeout_s))


@contextlib.contextmanager
def open_track(media: Media, zero: float | None, timeout_s: float = 60.0) -> Iterator[AudioReader]:
    """Opens the sound of a container. `zero`: the time on its clock that sample 0 is at; None: its own first sample."""
    with open_container(media, "audio") as container:
        yield _TrackReader(container, media, zero, timeout_s)


def _open_sndfile(media: Media) -> Any:
    """Opens it with libsndfile; None if that does not know the format after all (AAC behind an ID3 tag, for one)."""
    soundfile = load_package("soundfile", "audio")
    try:
        return soundfile.SoundFile(media if isinstance(media, str) else open_media(media, is_tolerant=True))
    except soundfile.LibsndfileError as error:
        if error.code != 1:  # other than "format not recognised"
            raise
        return None


def _is_for_sndfile(media: Media) -> bool:
    with open_media(media) as file:
        head = file.read(12) or b""
    if head.startswith((b"RIFF", b"riff")) and head[8:] not in (b"WAVE", b""):
        return False  # AVI, for one
    is_mpeg = len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0 and head[1] & 0x06 != 0
    return is_mpeg or head.startswith(_MAGIC)


class _SndfileReader:
    def __init__(self, file: Any, media: Media) -> None:
        self._file = file
        self.sample_rate = int(file.samplerate)
        self.num_channels = int(file.channels)
        self.num_samples = int(file.frames)
        if file.format.startswith("WAV"):
            _check_wav_length(media)

    def read(self, start: int, count: int) -> Waveform:
        count = max(0, min(count, self.num_samples - start))
        self._file.seek(start)
        samples: Waveform = self._file.read(count, dtype="float32", always_2d=True)  # [n, c]
        if len(samples) < count:
            raise ValueError(f"it ends after {start + len(samples)} of {self.num_samples} samples")
        return np.asarray(samples.T)


class _TrackReader:
    def __init__(
        self, container: av.container.InputContainer, media: Media, zero: float | None, timeout_s: float
    ) -> None:
        if not container.streams.audio:
            raise LookupError("it has no sound")
        self._container = container
        self._media = media
        self._stream = stream = container.streams.audio[0]
        self._deadline = time.monotonic() + timeout_s
        self._is_fresh = True
        for each in container.streams:
            each.discard = type(stream.discard).default if each is stream else type(stream.discard).all
        self._tick = float(stream.time_base or 0)
        self.sample_rate, self.num_channels = stream.codec_context.sample_rate, stream.codec_context.channels
        if not (self._tick and self.sample_rate and self.num_channels):
            raise ValueError("its sound has no sample rate, channels or times")
        begin = (stream.start_time or 0) * self._tick
        self._zero = begin if zero is None else zero
        duration = stream.duration * self._tick if stream.duration else (container.duration or 0) / 1e6
        self.num_samples = max(0, round((begin - self._zero + duration) * self.sample_rate))
        # raw streams have no table of contents: their times and length are guesses, so they are decoded whole
        self._whole: Waveform | None = None
        if container.format.name in ("aac", "mp3", "ac3", "eac3", "amr", "dts") or not duration:
            self._whole = self._decode_from(None, 0, 1 << 40)
            self.num_samples = self._whole.shape[1]

    def read(self, start: int, count: int) -> Waveform:
        if self._whole is not None:
            return self._whole[:, start : start + count]
        return self._decode_from(self._zero + start / self.sample_rate - _PREROLL_S, start, count)

    def _decode_from(self, seconds: float | None, start: int, count: int) -> Waveform:
        """Decodes from a time on; keeps `count` samples from sample `start` on, with silence where there are none."""
        num_unsure = 0
        begin = self._stream.start_time or 0
        if seconds is not None and seconds > begin * self._tick:
            self._container.seek(round(seconds / self._tick), stream=self._stream, backward=True)
            num_unsure = 2  # frames that miss the one before them
        elif not self._is_fresh:  # before the first sample lies what the codec needs to begin with
            self._container.seek(begin - round(1 / self._tick), stream=self._stream, backward=True)
        self._is_fresh = False
        pieces: list[tuple[int, Waveform]] = []
        position: int | None = None
        end = 0
        for number, frame in enumerate(self._frames()):
            samples = _to_float(frame)  # [c, n]
            if samples.shape[0] != self.num_channels or frame.sample_rate != self.sample_rate:
                raise ValueError("its channels or its sample rate change on the way")
            told = None if frame.pts is None else round((frame.pts * self._tick - self._zero) * self.sample_rate)
            if position is None:
                position = told if told is not None and seconds is not None else 0
            elif told is not None and seconds is not None and abs(told - position) > _MAX_GAP_S * self.sample_rate:
                position = told
            if number >= num_unsure and position + samples.shape[1] > start and position < start + count:
                pieces.append((position, samples))
                end = max(end, position + samples.shape[1])
            if position >= start + count:
                break
            position += samples.shape[1]
        result = np.zeros((self.num_channels, max(0, min(count, end - start))), np.float32)
        for place, samples in pieces:
            low, high = max(place, start), min(place + samples.shape[1], start + result.shape[1])
            result[:, low - start : high - start] = samples[:, low - place : high - place]
        return result

    def _frames(self) -> Iterator[AudioFrame]:
        for packet in self._container.demux(self._stream):
            yield from packet.decode()
            if time.monotonic() > self._deadline + waited_s(self._media):
                raise ValueError("its sound takes too long to decode")


def _to_float(frame: AudioFrame) -> Waveform:
    """Samples of any format, packed or planar, as float32 [c, n]."""
    values = frame.to_ndarray()  # [c, n], or [1, n * c] if packed
    if not frame.format.is_planar:
        values = values.reshape(-1, frame.layout.nb_channels).T
    name = frame.format.name.removesuffix("p")
    if name in _SCALES:
        middle, scale = _SCALES[name]
        return ((values.astype(np.float64 if name == "s32" else np.float32) - middle) / scale).astype(np.float32)
    return values.astype(np.float32)


def _check_wav_length(media: Media) -> None:
    """Refuses a WAV file whose samples are cut short, which libsndfile reads as a shorter one."""
    with open_media(media) as file:
        if file.read(4) != b"RIFF":
            return
        file.seek(12)
        while len(head := file.read(8) or b"") == 8:
            size = int.from_bytes(head[4:], "little")
            if head[:4] == b"data":
                here = file.tell()
                left = file.seek(0, io.SEEK_END) - here
                if left < size < 0x7FFF0000:  # larger ones are what writers to a pipe put there
                    raise ValueError(f"it is cut short: {left} of {size} bytes of samples")
                return
            file.seek(size + size % 2, io.SEEK_CUR)
