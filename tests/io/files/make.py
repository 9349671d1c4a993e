# Makes zoo.h5 and its companions: HDF5 files that only another program would write. Needs h5py, ml_dtypes and numpy.
# The tests do not run this; the files it made (h5py 3, HDF5 1.14) are checked in.
import h5py
import ml_dtypes
import numpy as np

with h5py.File("other.h5", "w") as f:
    f["y"] = np.full((2, 3), 9, "f4")

with h5py.File("zoo.h5", "w") as f:
    f["x"] = np.arange(6, dtype="f4").reshape(2, 3)
    f["g/bool"] = np.array([True, False, True])
    f["g/big"] = np.arange(5, dtype=">i4")
    f["g/half"] = np.arange(4, dtype="f2")
    f["scalar"] = np.float64(3.5)
    f["empty"] = np.zeros((0, 3), "i8")
    numbers = np.arange(1000, dtype="i2").reshape(10, 100)
    f.create_dataset("gzip", data=numbers, chunks=(3, 30), compression="gzip", shuffle=True, fletcher32=True)
    f.create_dataset("chunked", data=numbers.astype(">i2"), chunks=(3, 40))
    f.create_dataset("lzf", data=numbers, compression="lzf")
    f.create_dataset("never", shape=(4, 4), dtype="f4", fillvalue=7)
    f.create_dataset("never_chunked", shape=(4, 4), dtype="f4", fillvalue=7, chunks=(2, 2))
    f["null"] = h5py.Empty("f4")
    f["string"] = "hello"
    f["complex"] = np.zeros(3, "c8")
    f.create_dataset("vlen", (2,), h5py.vlen_dtype("i4"))
    f["reference"] = f["x"].ref
    f["opaque"] = np.zeros(2, "V3")
    f["enum"] = np.zeros(2, h5py.enum_dtype({"A": 0, "B": 1}, basetype="i1"))
    f.create_dataset("array", (2,), np.dtype(("i4", (3,))))
    f["type"] = np.dtype("f4")
    f["soft"] = h5py.SoftLink("/x")
    f["dangling"] = h5py.SoftLink("/nothing")
    f["external"] = h5py.ExternalLink("other.h5", "/y")
    f["soft_external"] = h5py.SoftLink("/external")
    f.create_dataset("elsewhere", (4,), "i4", external=[("other.bin", 0, 16)])
    layout = h5py.VirtualLayout((2, 3), "f4")
    layout[:] = h5py.VirtualSource("other.h5", "y", (2, 3))
    f.create_virtual_dataset("virtual", layout)
    layout = h5py.VirtualLayout((2, 3), "f4")
    layout[:] = h5py.VirtualSource(".", "virtual_self", (2, 3))
    f.create_virtual_dataset("virtual_self", layout)

    def low_level(name, type_, data, space=None, plist=None):
        space = space or h5py.h5s.create_simple(data.shape)
        d = h5py.h5d.create(f.id, name, type_, space, plist)
        d.write(h5py.h5s.ALL, h5py.h5s.ALL, data, mtype=type_)

    bfloat16 = h5py.h5t.IEEE_F32LE.copy()
    bfloat16.set_fields(15, 7, 8, 0, 7)
    bfloat16.set_size(2)
    bfloat16.set_ebias(127)
    low_level(b"bfloat16", bfloat16, np.array([0x3F80, 0x4000, 0xC040], "u2"))
    minifloat = h5py.h5t.IEEE_F32LE.copy()
    minifloat.set_fields(7, 3, 4, 0, 3)
    minifloat.set_size(1)
    minifloat.set_ebias(7)
    low_level(b"float8", minifloat, np.zeros(2, "u1"))
    twelve = h5py.h5t.STD_I16LE.copy()
    twelve.set_precision(12)
    low_level(b"int12", twelve, np.zeros(2, "i2"))
    compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    compact.set_layout(h5py.h5d.COMPACT)
    low_level(b"compact", h5py.h5t.STD_I32LE, np.arange(3, dtype="i4"), plist=compact)

with h5py.File("userblock.h5", "w", userblock_size=512) as f:
    f["y"] = np.arange(30, dtype="f4")

# For changing byte by byte: one dataset of each storage.
with h5py.File("small.h5", "w") as f:
    f["flat"] = np.arange(8, dtype="i4")
    f.create_dataset("gzip", data=np.arange(8, dtype="i2"), chunks=(4,), compression="gzip")

# Links of every kind beside two datasets.
with h5py.File("links.h5", "w") as f:
    f["x"] = np.arange(6.0)
    f["g/y"] = np.arange(3)
    f["g/x"] = f["x"]
    f["g/soft"] = h5py.SoftLink("/x")
    f["gone"] = h5py.SoftLink("/nothing")
    f["other"] = h5py.ExternalLink("other.h5", "/y")

# Types that h5py or PyTables write for want of others: bit fields, and opaque bytes for bfloat16.
with h5py.File("raw.h5", "w") as f:

    def raw(name, type_, data):
        d = h5py.h5d.create(f.id, name, type_, h5py.h5s.create_simple(data.shape))
        d.write(h5py.h5s.ALL, h5py.h5s.ALL, data, mtype=type_)

    def opaque(tag, size=2):
        type_ = h5py.h5t.create(h5py.h5t.OPAQUE, size)
        type_.set_tag(tag)
        return type_

    bits = np.array([0, 1, 1, 0, 255], "u8") * 0x0101010101010101
    for name in ("B8LE", "B16LE", "B16BE", "B32LE", "B64BE"):
        order = ">" if name.endswith("BE") else "<"
        data = bits.astype(f"{order}u{int(name[1:-2]) // 8}")
        raw(name.encode(), getattr(h5py.h5t, "STD_" + name), data)
        assert (f[name][()] == data).all()
    raw(b"mask", h5py.h5t.STD_B8LE, np.tri(4, dtype="u1"))
    halves = np.array([0x3F80, 0x4000, 0xC040], "u2")
    f["ml_dtypes"] = halves.view(ml_dtypes.bfloat16)
    raw(b"numpy", opaque(b"NUMPY:<V2"), halves)
    raw(b"named", opaque(b"bfloat16"), halves)
    raw(b"color", opaque(b"rgb565"), halves)
    raw(b"triple", opaque(b"", 3), np.zeros(2, "V3"))

# h5py's own filter beside the library's; the chunks on the right reach over the edge, and one holds noise, which
# lzf leaves as it is.
with h5py.File("lzf.h5", "w") as f:
    rows = np.arange(40 * 30, dtype="i4").reshape(40, 30) // 7
    rows[:16, :16] = np.random.default_rng(1).integers(-(2**31), 2**31, (16, 16))
    for name, options in {
        "lzf": {},
        "shuffle": {"shuffle": True},
        "sum": {"fletcher32": True},
        "all": {"shuffle": True, "fletcher32": True},
    }.items():
        f.create_dataset(name, data=rows, chunks=(16, 16), compression="lzf", **options)
    f.create_dataset("zeros", data=np.zeros(5000, "u1"), chunks=(5000,), compression="lzf")
    f["plain"] = rows

# Nothing that ejk has types for.
with h5py.File("unsupported.h5", "w") as f:
    f["a"] = "text"
    f["b"] = np.zeros(3, "c8")
np.savez("strings.npz", a=np.array(["x"]), b=np.array(["y"]))

# Names that are alike up to their ends, beside wide numbers.
with h5py.File("deep.h5", "w") as f:
    for axis in "xy":
        f[f"minc-2.0/dimensions/{axis}space"] = np.int32(0)
    f["minc-2.0/image/0/image-max"] = np.linspace(0.107, 0.987, 20).reshape(2, 10)
    f["minc-2.0/info/study"] = np.int32(-2147483647)
