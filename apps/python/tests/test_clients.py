"""Kernels of other libraries on arrays that ejk wrote: their results are those of `ejk attention` and `grouped-matmul`."""

import importlib

import pytest

import ejk

np = pytest.importorskip("numpy")
TOKENS, HEADS, SIZE, BLOCK = 512, 2, 64, 128
DOCUMENTS = np.repeat([1, 2, 3], [150, 300, 62]).astype(np.int32)
MASK = "causal & segments(ids) & local(199, none)"


def query_key_value():
    rng = np.random.default_rng(0)
    return [rng.standard_normal((1, TOKENS, HEADS, SIZE), np.float32) for _ in range(3)]


def flex_mask(torch):
    """FlexAttention's BlockMask of the mask, its mask_mod and its elements."""
    ids = torch.from_numpy(DOCUMENTS)

    def mask_mod(b, h, i, j):
        return (i >= j) & (ids[i] == ids[j]) & (i - j < 200)

    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    block_mask = flex.create_block_mask(mask_mod, None, None, TOKENS, TOKENS, device="cpu", BLOCK_SIZE=BLOCK)
    at = torch.arange(TOKENS)
    return block_mask, mask_mod, mask_mod(0, 0, at[:, None], at[None, :]).numpy()


LISTS = [f"{side}_{what}" for side in ("kv", "full_kv", "q", "full_q") for what in ("num_blocks", "indices")]


def test_jax_splash_attention_on_arrays_converted_from_flex_attention(tmp_path):
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    folder = "jax.experimental.pallas.ops.tpu.splash_attention."
    kernel = importlib.import_module(folder + "splash_attention_kernel")
    masks = importlib.import_module(folder + "splash_attention_mask_info")
    block_mask, _, dense = flex_mask(torch)
    count, index = block_mask.kv_num_blocks[0, 0].numpy(), block_mask.kv_indices[0, 0].numpy()
    stored = {name: getattr(block_mask, name).numpy() for name in LISTS}
    stored["BLOCK_SIZE"] = np.array([BLOCK, BLOCK], np.int32)
    stored["seq_lengths"] = np.array([TOKENS, TOKENS], np.int32)
    stored["partial_mask_blocks"] = np.array(
        [dense[i * BLOCK:(i + 1) * BLOCK, j * BLOCK:(j + 1) * BLOCK]
         for i in range(TOKENS // BLOCK) for j in index[i][:count[i]]])
    np.savez(tmp_path / "flex.npz", **stored)
    info = ejk.run("mask-info", mask=f"from({tmp_path}/flex.npz)", block=(BLOCK, BLOCK), layout="jax")

    arrays = [jax.numpy.asarray(info[name])
              for name in ("data_next", "mask_next", "block_mask", "partial_mask_blocks")]
    others = {name: None for name in masks.MaskInfo._fields[4:]}
    splash = kernel.SplashAttentionKernel(
        masks.MaskInfo(*arrays, **others), None, None,
        block_sizes=kernel.BlockSizes(block_q=BLOCK, block_kv=BLOCK, block_kv_compute=BLOCK, use_fused_bwd_kernel=False),
        is_mqa=False, save_residuals=False, mask_value=kernel.DEFAULT_MASK_VALUE, attn_logits_soft_cap=None,
        residual_checkpoint_name=None, mask_function=None, interpret=True)
    q, k, v = query_key_value()
    out = splash(*(jax.numpy.asarray(x[0].transpose(1, 0, 2)) for x in (q / np.sqrt(SIZE), k, v)))
    ejk.assert_attention(np.asarray(out).transpose(1, 0, 2)[None].copy(), q, k, v, mask=MASK, ids=DOCUMENTS)


@pytest.mark.parametrize("compiled", [False, True])
def test_flex_attention_on_a_block_mask_of_ejk(compiled):
    torch = pytest.importorskip("torch")
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    expected, mask_mod, _ = flex_mask(torch)
    arrays = ejk.run("mask-info", mask=MASK, ids=DOCUMENTS, shape=(TOKENS, TOKENS), block=(BLOCK, BLOCK), layout="flex")
    lists = [torch.from_numpy(np.array(arrays[name])) for name in LISTS]
    block_mask = flex.BlockMask.from_kv_blocks(
        *lists[:4], BLOCK_SIZE=(BLOCK, BLOCK), mask_mod=mask_mod, seq_lengths=(TOKENS, TOKENS))
    for name, of_ejk in zip(LISTS, lists):
        assert torch.equal(getattr(expected, name), of_ejk)
        assert torch.equal(getattr(block_mask, name), of_ejk)
    q, k, v = query_key_value()
    attend = torch.compile(flex.flex_attention) if compiled else flex.flex_attention
    out = attend(*(torch.from_numpy(x).transpose(1, 2) for x in (q, k, v)), block_mask=block_mask)
    ejk.assert_attention(out.transpose(1, 2), q, k, v, mask=MASK, ids=DOCUMENTS)


def test_jax_megablox_on_the_metadata_of_ejk(monkeypatch):
    jax = pytest.importorskip("jax")
    gmm = importlib.import_module("jax.experimental.pallas.ops.tpu.megablox.gmm")
    sizes, tile = np.array([100, 0, 156, 1, 63], np.int32), 64
    rng = np.random.default_rng(1)
    lhs, rhs = rng.standard_normal((320, 128), np.float32), rng.standard_normal((5, 128, 128), np.float32)
    used = []

    def metadata(*, group_sizes, m, tm, start_group, num_nonzero_groups, visit_empty_groups=True):
        made = ejk.run("group-metadata", sizes, tm=tm, m=m, visit_empty_groups=visit_empty_groups)
        used.append(made)
        arrays = [jax.numpy.asarray(made[name]) for name in ("group_offsets", "group_ids", "m_tile_ids", "num_tiles")]
        return tuple(arrays[:3]), arrays[3]

    monkeypatch.setattr(gmm, "make_group_metadata", metadata)
    out = gmm.gmm(*map(jax.numpy.asarray, (lhs, rhs, sizes)), preferred_element_type=np.float32,
                  tiling=(tile, 128, 128), interpret=True)
    assert used
    ejk.assert_grouped_matmul(np.asarray(out).copy(), lhs, rhs, sizes)
