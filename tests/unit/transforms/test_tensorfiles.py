"""LoadTensors: every format as it was stored, and files made to do harm, which do none."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save as save_safetensors

from sds.errors import DecodeError, OptionError
from sds.transforms import LoadTensors, pickles

MEAN = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
HALF = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)


def load(data: object, **options: object):
    return LoadTensors("file", "out", **options)({"file": data})["out"]


def saved(function, *arguments, **options) -> bytes:
    file = io.BytesIO()
    function(file, *arguments, **options)
    return file.getvalue()


def torch_saved(value, **options) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, **options)
    return file.getvalue()


def test_safetensors(tmp_path: Path) -> None:
    data = save_safetensors({"mean": MEAN, "half": HALF, "f8": HALF.to(torch.float8_e4m3fn)}, {"format": "pt"})
    path = tmp_path / "no extension needed"
    path.write_bytes(data)
    for value in (data, path, str(path)):
        found = load(value)
        assert set(found) == {"mean", "half", "f8"}
        assert torch.equal(found["mean"], MEAN) and found["half"].dtype == torch.bfloat16
    found["mean"][:] = 0  # memory of its own


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(save) -> None:
    found = load(saved(save, mean=MEAN.numpy(), fps=np.float32(24), big=np.arange(3, dtype=">i4")))
    assert torch.equal(found["mean"], MEAN) and found["fps"].shape == () and float(found["fps"]) == 24
    assert found["big"].tolist() == [0, 1, 2] and found["big"].dtype == torch.int32


@pytest.mark.parametrize("array", [MEAN.numpy(), np.asfortranarray(MEAN[0].numpy()), np.zeros((0, 3)), np.array(True)])
def test_npy(array) -> None:
    found = load(saved(np.save, array))
    assert np.array_equal(found.numpy(), array) and found.shape == array.shape and found.is_contiguous()


@pytest.mark.parametrize("is_zip", [True, False])
def test_torch_files_new_and_old(is_zip) -> None:
    value = {"mean": MEAN, "more": [HALF, ("text", 3, None, 2.5)], "view": MEAN[:, 1:]}
    found = load(torch_saved(value, _use_new_zipfile_serialization=is_zip))
    assert torch.equal(found["mean"], MEAN) and torch.equal(found["view"], MEAN[:, 1:])
    assert torch.equal(found["more"][0], HALF) and found["more"][1] == ("text", 3, None, 2.5)
    assert torch.equal(load(torch_saved(torch.nn.Parameter(MEAN))), MEAN)
    assert not load(torch_saved(torch.nn.Parameter(MEAN))).requires_grad


def test_floating_tensors_are_converted_when_asked() -> None:
    found = load(save_safetensors({"half": HALF, "ids": torch.arange(2)}), dtype=torch.float32)
    assert found["half"].dtype == torch.float32 and found["ids"].dtype == torch.int64


PICKLED = {
    "mean": MEAN,
    "view": MEAN[:, 1:, ::2],
    "turned": MEAN.mT,
    "half": HALF,
    "empty": torch.zeros(0, 3),
    "array": np.arange(6).reshape(2, 3),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "big_endian": np.arange(3, dtype=">f4"),
    "flags": np.array([True, False]),
    "input_framerate": np.float32(24.0),
    "input_shape": (16, 3, 256, 256),
    "nested": [1, "a", None, {"b": OrderedDict(c=b"bytes")}, {4}],
}


@pytest.mark.parametrize("protocol", range(2, 6))
def test_pickles_are_read_when_the_user_allows_it(protocol) -> None:
    data = pickle.dumps(PICKLED, protocol)
    with pytest.raises(DecodeError, match=r"pickle, which is not allowed(.|\n)*allow_pickle=True"):
        load(data)
    found = load(data, allow_pickle=True)
    for name in ("mean", "view", "turned", "half", "empty"):
        assert torch.equal(found[name], PICKLED[name])
    for name in ("array", "fortran", "big_endian", "flags"):
        assert isinstance(found[name], torch.Tensor) and found[name].tolist() == PICKLED[name].tolist()
    assert found["input_framerate"] == 24.0 and found["input_shape"] == (16, 3, 256, 256)
    assert found["nested"] == [1, "a", None, {"b": {"c": b"bytes"}}, {4}]


class Attack:
    """Unpickled by an ordinary loader, this runs a command."""

    def __init__(self, function, *arguments) -> None:
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def attacks(marker: Path) -> dict[str, object]:
    command = f"touch {marker}"
    return {
        "os.system": Attack(os.system, command),
        "inside a dict": {"mean": MEAN, "logvar": Attack(os.system, command)},
        "eval": Attack(eval, f"__import__('os').system({command!r})"),
        "exec": Attack(exec, f"import os; os.system({command!r})"),
        "open": Attack(open, str(marker), "w"),
        "getattr": Attack(getattr, os, "system"),
        "numpy's own loader": Attack(np.load, str(marker)),
        "torch's own loader": Attack(torch.load, str(marker)),
    }


@pytest.mark.parametrize("name", attacks(Path("x")))
def test_a_malicious_pickle_runs_nothing(name, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    value = attacks(marker)[name]
    files = [pickle.dumps(value, protocol) for protocol in range(6)] if name != "getattr" else []
    files += [torch_saved(value, _use_new_zipfile_serialization=new) for new in (True, False) if name != "getattr"]
    if name == "getattr":  # modules do not pickle: written by hand
        files = [b"\x80\x02c__builtin__\ngetattr\ncos\npath\nX\x04\x00\x00\x00sep_\x86R."]
    for data in files:
        for allow_pickle in (False, True):
            with pytest.raises(DecodeError):
                load(data, allow_pickle=allow_pickle)
    assert not marker.exists()
    if name == "os.system":  # the attack is real
        pickle.loads(pickle.dumps(value))
        assert marker.exists()


def test_an_attack_inside_a_tensors_storage_runs_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    inner = torch_saved(Attack(os.system, f"touch {marker}"), _use_new_zipfile_serialization=False)
    data = pickle.dumps(Attack(torch.storage._load_from_bytes, inner))
    with pytest.raises(DecodeError):
        load(data, allow_pickle=True)
    assert not marker.exists()
    with pytest.raises(DecodeError):
        load(saved(np.save, np.array([Attack(os.system, f"touch {marker}")], dtype=object), allow_pickle=True))
    assert not marker.exists()


def test_a_pickle_cannot_change_what_later_ones_use() -> None:
    function = b"cnumpy\ndtype\n"
    for state in (b"}X\x01\x00\x00\x00aK\x01s", b"N}X\x0c\x00\x00\x00__defaults__K\x01s\x86"):
        with pytest.raises(DecodeError, match="change a function"):
            load(b"\x80\x02" + function + state + b"b.", allow_pickle=True)
    assert torch.equal(load(pickle.dumps(MEAN), allow_pickle=True), MEAN)


def forged(dtype="f4", shape=(3,), data=bytes(12), fortran=False, state=(3, "<", None, None, None, -1, -1, 0)) -> bytes:
    """A pickle of an array whose parts do not fit together, as NumPy itself would write it."""
    head = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R"
    body = b"(K\x01" + pickle.dumps(shape, 2)[2:-1].replace(b"q\x00", b"")
    kind = b"cnumpy\ndtype\n" + pickle.dumps((dtype, False, True), 2)[2:-1] + b"R" + pickle.dumps(state, 2)[2:-1] + b"b"
    tail = (b"\x88" if fortran else b"\x89") + b"B" + struct.pack("<I", len(data)) + data + b"tb."
    return head + body + kind + tail


def test_forged_arrays_are_refused() -> None:
    assert load(forged(), allow_pickle=True).tolist() == [0, 0, 0]
    for options in (
        {"dtype": "O8"},
        {"dtype": "V4"},
        {"dtype": "S4"},
        {"dtype": "f4,f4"},
        {"shape": (4,)},
        {"shape": (2**40,)},
        {"shape": (-3,)},
        {"shape": (0,)},
        {"state": (3, "|", ("f4", (1,)), None, None, 4, 4, 63)},
        {"state": (3, "!", None, None, None, -1, -1, 0)},
        {"data": bytes(11)},
    ):
        with pytest.raises(DecodeError):
            load(forged(**options), allow_pickle=True)


def test_forged_tensors_never_leave_their_storage() -> None:
    flat = torch.zeros(4)
    assert pickles._tensor(flat, 0, (2, 2), (2, 1)).shape == (2, 2)
    for offset, size, stride in (
        (1, (4,), (1,)),
        (0, (2,), (4,)),
        (0, (2**40,), (1,)),
        (-1, (1,), (1,)),
        (0, (2,), (-1,)),
    ):
        with pytest.raises(ValueError, match="pickle"):
            pickles._tensor(flat, offset, size, stride)


def test_pickles_that_take_memory_or_time_are_refused_at_once() -> None:
    bombs = [
        b"\x80\x04N" + b"r" + struct.pack("<I", 2**31) + b".",  # a memo of 2**31 places
        b"\x80\x02Np2000000000\n.",
        b"\x80\x04]" + b"N0" * 200_000 + b".",
        b"\x80\x04" + b"]" * 99_000 + b"a" * 98_999 + b".",  # brackets without end
        b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"x.",
        b"\x80\x04]\x94h\x00a.",  # a list inside itself
        b"\x80\x04]\x94" + b"".join(b"]\x94(" + bytes([ord("h"), n]) * 9 + b"e" for n in range(40)) + b".",
        b"\x80\x04c__builtin__\nbytearray\nJ\xff\xff\xff\x7f\x85R.",
    ]
    for bomb in bombs:
        with pytest.raises(DecodeError):
            load(bomb, allow_pickle=True)


def test_a_zip_bomb_is_refused_before_it_is_unpacked() -> None:
    data = saved(np.savez_compressed, zeros=np.zeros(4_000_000, np.uint8))
    assert len(data) < 10_000
    with pytest.raises(DecodeError, match="unpacked are more than 1 MB"):
        load(data, max_bytes="1mb")
    lying = bytearray(data)
    at = data.index(b"PK\x01\x02") + 24  # the size that the directory gives
    lying[at : at + 4] = struct.pack("<I", 500_000)
    with pytest.raises(DecodeError):
        load(bytes(lying), max_bytes="1mb")


def test_an_array_larger_than_its_file_takes_no_memory() -> None:
    for shape in ((30_000_000_000,), (4,), (2**40, 2**40), (-3,)):
        header = {"descr": "<f8", "fortran_order": False, "shape": shape}
        data = saved(np.lib.format.write_array_header_1_0, header) + bytes(24)
        with pytest.raises(DecodeError, match="24 bytes are not"):
            load(data)


def test_what_is_no_tensor_file_is_a_decode_error(tmp_path: Path) -> None:
    empty_zip = saved(lambda file: zipfile.ZipFile(file, "w").close())
    other_zip = io.BytesIO()
    with zipfile.ZipFile(other_zip, "w") as file:
        file.writestr("readme.txt", "hello")
    structured = saved(np.save, np.zeros(2, dtype=[("a", "f4")]))
    sparse = torch_saved(torch.eye(3).to_sparse())
    module = torch_saved({"a": {1, 2}})
    for value in (
        b"",
        b"hello",
        b"\x93NUMPY",
        b"PK\x03\x04",
        empty_zip,
        other_zip.getvalue(),
        structured,
        sparse,
        module,
    ):
        with pytest.raises(DecodeError):
            load(value)
    with pytest.raises(DecodeError, match="absent"):
        load(tmp_path / "absent.npz")


def test_options_are_checked_by_name() -> None:
    for options, name in (
        ({"dtype": torch.int64}, "dtype"),
        ({"dtype": "float32"}, "dtype"),
        ({"max_bytes": "x"}, "max_b"),
    ):
        with pytest.raises(OptionError, match=name):
            LoadTensors("file", **options)
