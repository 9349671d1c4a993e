# Makes the valid files of tests/fuzz/corpus that NumPy, h5py, safetensors and torch write. Needs all; the tests do not
# run this. What lies there beside them was made by ejk or by hand, or found by fuzzing.
#   python make_corpus.py FOLDER
import argparse
import io
import pathlib
import sys
import zipfile

import h5py
import numpy as np
import safetensors.torch
import torch

corpus = pathlib.Path(sys.argv[1])


def place(target, name):
    folder = corpus / target
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


for name, array in {
    "float32.npy": np.arange(6, dtype="f4").reshape(2, 3),
    "big-endian.npy": np.arange(5, dtype=">i4"),
    "fortran.npy": np.asfortranarray(np.arange(24, dtype="i2").reshape(2, 3, 4)),
    "bool.npy": np.array([True, False, True]),
    "scalar.npy": np.float64(3.5),
    "empty.npy": np.zeros((0, 3), "i8"),
    "half.npy": np.arange(4, dtype="f2"),
    "bfloat16.npy": np.arange(4, dtype="u2").view("V2"),
    "uint64.npy": np.array([2**63, 1], "u8"),
    "complex.npy": np.zeros(3, "c8"),
    "fields.npy": np.zeros(2, [("a", "i4"), ("b", "f8")]),
    "dates.npy": np.zeros(2, "M8[ns]"),
}.items():
    np.save(place("npy", name), array)
for version in (2, 3):
    with open(place("npy", f"version-{version}.npy"), "wb") as f:
        np.lib.format.write_array(f, np.arange(3), version=(version, 0))

arrays = {"x": np.arange(6, dtype="f4").reshape(2, 3), "y": np.arange(40, dtype=">i2")}
np.savez(place("npz", "stored.npz"), **arrays)
np.savez_compressed(place("npz", "deflated.npz"), **arrays)
np.savez(place("npz", "one.npz"), only=np.asfortranarray(np.arange(12).reshape(3, 4)))
np.savez_compressed(place("npz", "zeros.npz"), zeros=np.zeros(100000, "u1"))
np.savez(place("npz", "none.npz"))


def member(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


class Pipe(io.RawIOBase):
    """A file that cannot seek: zipfile then puts sizes behind the data."""

    def __init__(self, file):
        self.file = file

    def writable(self):
        return True

    def write(self, data):
        return self.file.write(data)


with open(place("npz", "data-descriptor.npz"), "wb") as f, zipfile.ZipFile(Pipe(f), "w", zipfile.ZIP_DEFLATED) as z:
    z.writestr("x.npy", member(np.arange(9)))
with zipfile.ZipFile(place("npz", "zip64.npz"), "w") as z:
    with z.open("x.npy", "w", force_zip64=True) as f:
        f.write(member(np.arange(3)))
    z.writestr("readme.txt", "no array")
with zipfile.ZipFile(place("npz", "bzip2.npz"), "w", zipfile.ZIP_BZIP2) as z:
    z.writestr("x.npy", member(np.arange(9)))
with zipfile.ZipFile(place("npz", "comment.npz"), "w") as z:
    z.comment = b"PK\x05\x06 in a comment"
    z.writestr("\u00e4/x.npy", member(np.arange(2)))

numbers = np.arange(60, dtype="i2").reshape(6, 10)


def h5(name, libver=("earliest", "v110"), **settings):
    return h5py.File(place("hdf5", name), "w", libver=libver, meta_block_size=1, **settings)


def chunked(f, name, data=numbers, **settings):
    f.create_dataset(name, data=data, track_times=False, **settings)


with h5("flat.h5") as f:
    f["x"] = np.arange(8, dtype="f4")
    f["x"].attrs["words"] = np.bytes_("of it")
    f["x"].attrs["number"] = 7
with h5("userblock.h5", userblock_size=512) as f:
    f["x"] = np.arange(3)
for name, settings in {
    "chunks.h5": {"chunks": (4, 4)},
    "gzip.h5": {"chunks": (3, 10), "compression": "gzip"},
    "filters.h5": {"chunks": (4, 4), "compression": "gzip", "shuffle": True, "fletcher32": True},
    "lzf.h5": {"chunks": (3, 10), "compression": "lzf"},
    "extensible.h5": {"chunks": (3, 10), "maxshape": (None, 10), "fletcher32": True},
}.items():
    with h5(name) as f:
        chunked(f, "x", **settings)
    with h5("new-" + name, libver=("v110", "v110")) as f:
        chunked(f, "x", **settings)
with h5("new-tree.h5", libver=("v110", "v110")) as f:
    chunked(f, "x", chunks=(3, 5), maxshape=(None, None))
with h5("new-one-chunk.h5", libver=("v110", "v110")) as f:
    chunked(f, "x", chunks=(6, 10), compression="gzip")
for kind, libver in {"": ("earliest", "v110"), "new-": ("v110", "v110")}.items():
    with h5(kind + "unwritten.h5", libver=libver) as f:
        f.create_dataset("flat", (4, 4), "f4", fillvalue=7)
        f.create_dataset("chunked", (1 << 40,), "f4", fillvalue=7, chunks=(64,))
    with h5(kind + "links.h5", libver=libver) as f:
        f["g/x"] = np.arange(3, dtype="i1")
        f["hard"] = f["g/x"]
        f["soft"] = h5py.SoftLink("/g/x")
        f["gone"] = h5py.SoftLink("/nothing")
        f["other"] = h5py.ExternalLink("other.h5", "/y")
        f["g/loop"] = h5py.SoftLink("/g")
    with h5(kind + "types.h5", libver=libver) as f:
        f["bool"] = np.array([True, False])
        f["string"] = np.bytes_("hello")
        f["big"] = np.arange(3, dtype=">u4")
        f["complex"] = np.zeros(2, "c8")
with h5("variable.h5") as f:
    f.create_dataset("x", (2,), h5py.vlen_dtype("i4"))
    f.attrs["text"] = "a text of variable length"
with h5("elsewhere.h5") as f:
    f.create_dataset("x", (4,), "i4", external=[("other.bin", 0, 16)])
with h5("compact.h5") as f:
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_layout(h5py.h5d.COMPACT)
    data = np.arange(3, dtype="i4")
    h5py.h5d.create(f.id, b"x", h5py.h5t.STD_I32LE, h5py.h5s.create_simple((3,)), plist).write(
        h5py.h5s.ALL, h5py.h5s.ALL, data
    )

small = {
    "layers.0.w": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "b": torch.arange(3, dtype=torch.bfloat16),
    "f8": torch.arange(5, dtype=torch.uint8).view(torch.float8_e4m3fn),
    "scalar": torch.tensor(7),
    "empty": torch.zeros(0, 4, dtype=torch.bool),
}
safetensors.torch.save_file(small, place("safetensors", "small.safetensors"))
safetensors.torch.save_file(small, place("safetensors", "metadata.safetensors"), {"format": "pt"})
safetensors.torch.save_file({"f4": torch.zeros(2, 3, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
                             "c64": torch.ones(2, dtype=torch.complex64)}, place("safetensors", "packed.safetensors"))
safetensors.torch.save_file({}, place("safetensors", "none.safetensors"))
base = torch.arange(12, dtype=torch.int16).reshape(3, 4)
for protocol in (2, 4):
    torch.save(small, place("torch", f"small-{protocol}.pt"), pickle_protocol=protocol)
    torch.save({"t": base.t(), "l": [base[1:, ::2], (torch.nn.Parameter(torch.ones(2)), None)], "n": {0: base[:, 0]}},
               place("torch", f"nested-{protocol}.pt"), pickle_protocol=protocol)
torch.save(torch.nn.Linear(2, 1).state_dict(), place("torch", "module.pt"))
torch.save(torch.ones(2, dtype=torch.complex64), place("torch", "complex.pt"))
torch.save({"model": {"w": torch.ones(2)}, "args": argparse.Namespace(lr=0.1)}, place("torch", "namespace.pt"))
