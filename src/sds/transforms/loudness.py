"""How loud: the loudness of ITU-R BS.1770-4 in LUFS, peak and RMS in dB, and the loudest part. Pure NumPy.

Comes in: a waveform [c, t] in [-1, 1]. Goes out: a number of dB, or an offset. Silence is -inf. The two filters of
BS.1770 are applied in the frequency domain, where they are one product, so that no filter library is needed.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

__all__ = ["integrated_lufs", "loudest_offset", "peak_db", "rms_db", "window_db", "within_scale"]

Waveform = npt.NDArray[np.float32]

_BLOCK_S, _HOP_S = 0.4, 0.1
_ABSOLUTE_GATE, _RELATIVE_GATE = -70.0, -10.0
_SURROUND = 1.41  # what the channels behind count; the order is left, right, centre, LFE (from six on), the others
_TAIL_S = 0.5  # the filters' echo is below 1e-9 after that


def within_scale(waveform: Waveform) -> Waveform:
    """The waveform, contiguous and writable, clipped to [-1, 1] where it must be."""
    waveform = np.require(waveform, np.float32, ("C", "W"))
    if waveform.size and (waveform.max() > 1 or waveform.min() < -1):
        waveform = np.clip(waveform, -1, 1)
    return waveform


def peak_db(waveform: Waveform) -> float:
    """The largest sample, dB of full scale."""
    return _to_db(float(np.abs(waveform).max(initial=0.0)))


def rms_db(waveform: Waveform) -> float:
    """The root mean square over all channels, dB of full scale."""
    return _to_db(float(np.sqrt(np.mean(np.square(waveform, dtype=np.float64)))) if waveform.size else 0.0)


def integrated_lufs(waveform: Waveform, sample_rate: int) -> float:
    """The gated loudness of a whole waveform; one that is shorter than 0.4 s is measured as one block."""
    weighted = _k_weighted(waveform, sample_rate)  # [c, t]
    gains = np.array(_channel_gains(len(waveform)))  # [c]
    block, hop = round(_BLOCK_S * sample_rate), round(_HOP_S * sample_rate)
    energy = np.concatenate([np.zeros((len(weighted), 1)), np.cumsum(weighted**2, axis=1)], axis=1)  # [c, t + 1]
    starts = np.arange(0, max(1, waveform.shape[1] - block + 1), hop)  # [blocks]
    ends = np.minimum(starts + block, waveform.shape[1])
    power = gains @ ((energy[:, ends] - energy[:, starts]) / np.maximum(1, ends - starts))  # [blocks]
    loud = power[_to_lufs(power) > _ABSOLUTE_GATE]
    if loud.size:
        loud = loud[_to_lufs(loud) > _to_lufs(loud.mean()) + _RELATIVE_GATE]
    return float(_to_lufs(loud.mean())) if loud.size else -math.inf


def window_db(waveform: Waveform, length: int, hop: int) -> npt.NDArray[np.float64]:
    """The RMS, dB, of every window of `length` samples that begins at a multiple of `hop`: [windows]."""
    power = np.square(waveform, dtype=np.float64).mean(axis=0)  # [t]
    total = np.concatenate([[0.0], np.cumsum(power)])  # [t + 1]
    starts = np.arange(0, waveform.shape[1] - length + 1, hop)
    mean = np.maximum(total[starts + length] - total[starts], 0) / length
    with np.errstate(divide="ignore"):
        return np.asarray(10 * np.log10(mean), dtype=np.float64)


def loudest_offset(waveform: Waveform, length: int, hop: int) -> int:
    """Where the loudest window of `length` samples begins, to within `hop` samples."""
    return hop * int(np.argmax(window_db(waveform, length, hop)))


def _to_db(amplitude: float) -> float:
    return 20 * math.log10(amplitude) if amplitude > 0 else -math.inf


def _to_lufs(power: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    with np.errstate(divide="ignore"):
        return np.asarray(-0.691 + 10 * np.log10(power))


def _channel_gains(num_channels: int) -> list[float]:
    if num_channels < 5:
        return [1.0] * num_channels
    front = [1.0, 1.0, 1.0] if num_channels == 5 else [1.0, 1.0, 1.0, 0.0]  # the LFE does not count
    return front + [_SURROUND] * (num_channels - len(front))


def _k_weighted(waveform: Waveform, sample_rate: int) -> npt.NDArray[np.float64]:
    """The head's shelf and the high-pass of BS.1770 at any sample rate: [c, t]."""
    num_samples = waveform.shape[1]
    size = 1 << (num_samples + round(_TAIL_S * sample_rate) - 1).bit_length()
    z = np.exp(-2j * np.pi * np.arange(size // 2 + 1) / size)  # one step's delay, at each frequency
    response = _shelf(sample_rate, z) * _high_pass(sample_rate, z)
    spectrum = np.fft.rfft(waveform, size, axis=1)
    return np.asarray(np.fft.irfft(spectrum * response, size, axis=1)[:, :num_samples])


def _shelf(sample_rate: int, z: npt.NDArray[np.complex128]) -> npt.NDArray[np.complex128]:
    # analogue values that give the standard's coefficients at 48 kHz
    frequency, quality, gain_db = 1681.974450955533, 0.7071752369554196, 3.999843853973347
    k = math.tan(math.pi * frequency / sample_rate)
    high = 10 ** (gain_db / 20)
    band = high**0.4996667741545416
    b = (high + band * k / quality + k * k, 2 * (k * k - high), high - band * k / quality + k * k)
    a = (1 + k / quality + k * k, 2 * (k * k - 1), 1 - k / quality + k * k)
    return np.asarray((b[0] + b[1] * z + b[2] * z**2) / (a[0] + a[1] * z + a[2] * z**2))


def _high_pass(sample_rate: int, z: npt.NDArray[np.complex128]) -> npt.NDArray[np.complex128]:
    frequency, quality = 38.13547087602444, 0.5003270373238773
    k = math.tan(math.pi * frequency / sample_rate)
    norm = 1 + k / quality + k * k
    a1, a2 = 2 * (k * k - 1) / norm, (1 - k / quality + k * k) / norm
    return np.asarray((1 - 2 * z + z**2) / (1 + a1 * z + a2 * z**2))
