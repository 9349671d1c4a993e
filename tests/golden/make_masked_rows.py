# Makes masked_rows.h5: gradients of attention whose queries without a key get the mean of all values, by jax.grad of
# JAX's splash reference and of jax.nn.dot_product_attention. Needs h5py, jax, ml_dtypes and numpy, on a CPU. The tests
# do not run this. README.md describes the layout.
import json

import h5py
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax_arrays import put

rng = np.random.default_rng(38)


def normal(shape, dtype):
    return jnp.asarray(rng.standard_normal(shape), dtype)


def case(file, by, dtype, heads, kv_heads, offset, cap):
    queries, keys, size = 11, 17, 8
    q, dout = normal((heads, queries, size), dtype), normal((heads, queries, size), dtype)
    k, v = normal((kv_heads, keys, size), dtype), normal((kv_heads, keys, size), dtype)
    mask = np.arange(queries)[:, None] + offset >= np.arange(keys)[None, :]
    f32 = [x.astype(np.float32) for x in (q, k, v)]  # the gradients are not rounded
    if by == "splash":
        function = splash.make_attention_reference(np.stack([mask] * heads), is_mqa=False)
        run = lambda q, k, v: function(q, k, v, attn_logits_soft_cap=cap)
        scale = 1.0
    else:
        turn = lambda x: x.transpose(1, 0, 2)
        run = lambda q, k, v: turn(jax.nn.dot_product_attention(turn(q), turn(k), turn(v), mask=jnp.asarray(mask)[None]))
        scale = size**-0.5
    out, vjp = jax.vjp(run, *f32)
    gradients = vjp(dout.astype(np.float32))
    group = file.create_group(f"{by}_{jnp.dtype(dtype).name}_{heads}_{kv_heads}_{-offset}_{'cap' if cap else 'plain'}")
    group.attrs["params"] = json.dumps({"scale": scale, "softcap": cap, "offset": offset})
    for name, array in {"q": q, "k": k, "v": v, "dout": dout}.items():
        put(group, "in/" + name, array)
    for name, array in zip(["out", "dq", "dk", "dv"], [out, *gradients]):
        put(group, "out/" + name, array)


with h5py.File("masked_rows.h5", "w", libver=("v110", "v110")) as f:
    f.attrs["provenance"] = json.dumps(
        {"function": "attention_grad", "jax": jax.__version__, "numpy": np.__version__, "h5py": h5py.__version__})
    for dtype in [jnp.float32, jnp.bfloat16, jnp.float16]:
        case(f, "splash", dtype, 2, 2, -3, None)  # the first three queries have no key
        case(f, "splash", dtype, 4, 2, -3, 5.0)
        case(f, "splash", dtype, 2, 1, -100, None)  # nor has any
        case(f, "nn", dtype, 4, 2, -2, None)
