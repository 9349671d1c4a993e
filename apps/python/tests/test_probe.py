"""Pairs and tokens that a function uses: those of its mask, and one more or less where it has a fault."""

import pytest

import ejk

np = pytest.importorskip("numpy")
TOKENS, SIZE = 70, 16
CU, IDS = [0, 13, 14, 50, 70], [1] * 30 + [2] * 25 + [0] * 15
MASKS = ["full", "causal", "causal(offset=3)", "causal(offset=-5)", "local(7, 0)", "local(0, 7)", "local(3, 5)",
         "causal & local(20, none)", "chunked(16)", "chunked(16, offset=4)", "prefix(11)", "causal | prefix(11)",
         "~prefix(9) & causal", "documents(cu)", "causal & documents(cu)", "local(5, 5) & documents(cu)", "segments(ids)",
         "causal & segments(ids)", "causal & ~local(9, 0)", "causal(align=bottom-right) & local(31, 0)"]


def attention_weights(q, k, mask):
    """Of (batch, heads, tokens, size), in float64; 0 in rows without a key."""
    scores = np.where(mask, q.astype(float) @ k.astype(float).swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -np.inf)
    weights = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), -1e9))
    return weights / np.maximum(weights.sum(-1, keepdims=True), 1e-300)


def stored(expression):
    arrays = {name: array for name, array in (("cu", CU), ("ids", IDS)) if f"({name})" in expression}
    return ejk.run("mask", mask=expression, shape=(TOKENS, TOKENS), **arrays)["mask"]


def counted(function):
    def call(*arrays):
        call.count += 1
        return function(*arrays)

    call.count = 0
    return call


@pytest.mark.parametrize("implementation, masks", [("sdpa", MASKS), ("flex", MASKS[1::4])])  # all 20 pass; flex is slow
def test_pairs_and_weights_of_torch(implementation, masks):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)

    def kernel_of(mask):
        mask = torch.from_numpy(mask)
        if implementation == "sdpa":
            return lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        flex = pytest.importorskip("torch.nn.attention.flex_attention")
        blocks = flex.create_block_mask(lambda b, h, i, j: mask[i, j], None, None, TOKENS, TOKENS, device="cpu",
                                        BLOCK_SIZE=16)
        return lambda q, k, v: flex.flex_attention(q, k, v, block_mask=blocks)

    for i, expression in enumerate(masks):
        mask = stored(expression).copy()
        for _ in range(i % 3):  # leaks and holes
            pair = tuple(rng.integers(0, TOKENS, 2))
            mask[pair] = not mask[pair]
        q, k = rng.standard_normal((2, 2, 2, TOKENS, SIZE), np.float32)
        kernel = counted(kernel_of(mask))
        weights = ejk.probe(kernel, *map(torch.from_numpy, (q, k)), weights=True, layout="bhsd")
        assert kernel.count == -(-TOKENS // SIZE), expression
        assert np.abs(weights.numpy() - attention_weights(q, k, mask)).max() < 1e-5, expression
        q, k, v = (torch.from_numpy(x[:, :, :, :d]).bfloat16() for x, d in ((q, 8), (k, 8), (k, 11)))
        pairs = ejk.probe(kernel, q, k, v, layout="bhsd")
        assert pairs.dtype == torch.bool and pairs.shape == (2, 2, TOKENS, TOKENS)
        assert (pairs.numpy() == mask).all(), expression


def test_groups_of_heads_packed_inputs_and_tuples():
    rng = np.random.default_rng(1)
    q, k = rng.standard_normal((9, 6, 8), np.float32), rng.standard_normal((21, 2, 8), np.float32)
    mask = np.tri(9, 21, 12, bool)

    def kernel(q, k, v):
        k, v = (np.repeat(x, 3, 1).swapaxes(0, 1) for x in (k, v))
        weights = attention_weights(q.swapaxes(0, 1), k, mask)
        return (weights @ v).astype(np.float32).swapaxes(0, 1), None

    assert np.array_equal(ejk.probe(kernel, q, k), np.broadcast_to(mask, (1, 6, 9, 21)))
    by_entry = ejk.probe(lambda q, k, v: kernel(q[0], k[0], v[0])[0][None], q[None], k[None], weights=True)
    assert by_entry.dtype == np.float32 and np.allclose(by_entry.sum(-1), 1, atol=1e-5)
    with pytest.raises(ValueError, match=r"result is \(6, 9, 8\), not \(9, 6, 8\)"):
        ejk.probe(lambda q, k, v: kernel(q, k, v)[0].swapaxes(0, 1), q, k)
    with pytest.raises(ValueError, match="layout"):
        ejk.probe(kernel, q, k, layout="thd")


def test_tokens_of_attention_a_convolution_and_a_recurrence():
    rng, lower = np.random.default_rng(2), np.tri(20, dtype=bool)
    x = rng.standard_normal((2, 20, 4), np.float32)

    def attention(x):
        mask = lower & (np.arange(20) != 3)  # a hole: token 3 is no key
        heads = x[:, None]
        return (attention_weights(heads, heads, mask) @ heads)[:, 0]

    def convolution(x):  # of 3 tokens, 2 apart
        padded = np.pad(x, ((0, 0), (4, 0), (0, 0)))
        return padded[:, 4:] * 0.5 + padded[:, 2:-2] * 0.25 - padded[:, :-4]

    def recurrence(x):
        states = [np.zeros_like(x[:, 0])]
        for t in range(20):
            states.append(np.tanh(0.9 * states[-1] + x[:, t]))
        return np.stack(states[1:], 1)

    at = np.arange(20)
    before = at[:, None] - at
    for function, expected in ((attention, (lower & (at != 3)) | np.eye(20, dtype=bool)),
                               (convolution, (before == 0) | (before == 2) | (before == 4)), (recurrence, lower),
                               (lambda x: x[:, ::2] - x[:, ::2].mean(-1, keepdims=True), at[::2, None] == at)):
        function = counted(function)
        assert np.array_equal(ejk.probe_tokens(function, x), expected)
        assert function.count == 22
    along = ejk.probe_tokens(lambda x: recurrence(x.swapaxes(0, 1)).swapaxes(0, 1), x.swapaxes(0, 1).copy(), axis=0)
    assert np.array_equal(along, lower)
    with pytest.raises(ValueError, match="two equal calls differ"):
        ejk.probe_tokens(lambda x: x * (rng.random(x.shape) < 0.9), x)


def test_tokens_of_layers_of_torch():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(2, 12, 8, dtype=dtype)
        layer = torch.nn.GRU(8, 8, batch_first=True, dtype=dtype)  # its result is a tuple
        assert torch.equal(ejk.probe_tokens(layer, x), torch.ones(12, 12).tril().bool())
        normed = torch.nn.LayerNorm(8, dtype=dtype)
        assert torch.equal(ejk.probe_tokens(normed, x), torch.eye(12).bool())
    ids = torch.tensor([[4, 4, 0, 9, 9, 1]])
    assert torch.equal(ejk.probe_tokens(torch.nn.Embedding(10, 8), ids), torch.eye(6).bool())
