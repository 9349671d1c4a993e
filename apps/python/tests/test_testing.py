"""Problems of ejk.testing: right kernels pass, faults are found and shrink, and every edge occurs."""

import os
import subprocess
import sys
import tempfile
from types import SimpleNamespace

import pytest

np = pytest.importorskip("numpy")


def test_hypothesis_is_optional():
    code = "import ejk, sys\nassert 'hypothesis' not in sys.modules\nsys.modules['hypothesis'] = None\nimport ejk.testing"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.endswith("ImportError: ejk.testing needs Hypothesis: pip install hypothesis\n")


try:
    import hypothesis
    from hypothesis import HealthCheck, Phase, configuration, strategies
except ImportError:
    pytest.skip("Hypothesis is not installed", allow_module_level=True)
configuration.set_hypothesis_home_dir(os.path.join(tempfile.gettempdir(), "ejk-hypothesis"))  # not in the tree

from ejk.testing import (AttentionProblem, GroupedProblem, PagedProblem, attention_problems,  # noqa: E402
                         grouped_problems, packed_lengths, paged_problems)

KINDS = {"dtypes": ("float32", "float16"), "framework": "numpy"}
FAST = {"database": None, "deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}


def attend(q, k, v, mask=True, scale=None):
    """Of (batch, tokens, heads, size)."""
    q, k, v = (x.astype(np.float32).swapaxes(1, 2) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = np.where(mask, q @ k.swapaxes(-1, -2) * (scale or q.shape[-1]**-0.5), -np.inf)
    weights = np.exp(scores - scores.max(-1, initial=-1e9, keepdims=True))
    return (weights @ v / np.maximum(weights.sum(-1, keepdims=True), 1e-30)).swapaxes(1, 2)


def distance(p):
    """From each query to each key, aligned at the last ones."""
    return np.arange(p.queries)[:, None] + p.keys - p.queries - np.arange(p.keys)


def pairs(p):
    at = distance(p)
    mask = at >= 0 if p.causal else at == at
    if p.window:
        mask = mask & (at <= p.window[0]) & (at >= -p.window[1])
    if p.lengths:
        ids = np.repeat(np.arange(len(p.lengths)), p.lengths)
        mask = mask & (ids[:, None] == ids)
    return mask


def attention(p):
    return attend(p.q, p.k, p.v, pairs(p)).astype(p.dtype)


def grouped(p):
    out = np.zeros((p.rows, p.columns), np.float32)
    ends = np.cumsum(p.sizes)
    for g, (end, size) in enumerate(zip(ends, p.sizes)):
        out[end - size:end] = p.lhs[end - size:end].astype(np.float32) @ p.rhs[g].astype(np.float32)
    return out


def paged(p, keys_read=lambda p, length: length):
    rows = []
    for i, length in enumerate(p.lengths):
        k, v = (cache[p.block_table[i]].reshape(-1, p.kv_heads, p.head_size)[:keys_read(p, length)][None]
                for cache in (p.k_cache, p.v_cache))
        rows.append(attend(p.q[i][None, None], k, v)[0, 0])
    return np.stack(rows).astype(p.dtype)


@pytest.mark.parametrize("problems, kernel", [(attention_problems, attention), (grouped_problems, grouped),
                                              (paged_problems, paged)])
def test_right_kernels_pass(problems, kernel):
    @hypothesis.settings(max_examples=30, **FAST)
    @hypothesis.given(problems(**KINDS))
    def passes(p):
        assert eval(repr(p)) == p and "\n" not in repr(p)
        p.check(kernel(p))

    passes()


def causal_late(p):
    return attend(p.q, p.k, p.v, pairs(p) | (p.causal & (distance(p) == -1))).astype(p.dtype)


def rest_unwritten(p):
    out = attention(p)
    if p.queries > 64:
        out[:, (p.queries - 1) // 64 * 64:] = 0
    return out


def documents_ignored(p):
    at = distance(p)
    return attend(p.q, p.k, p.v, pairs(p) if p.lengths is None else at >= 0 if p.causal else at == at).astype(p.dtype)


def batch_0(p):
    return attend(p.q, *(np.broadcast_to(x[:1], x.shape) for x in (p.k, p.v)), pairs(p)).astype(p.dtype)


def labels_of_tiles(p):
    ids = np.repeat(np.arange(len(p.sizes)), p.sizes)
    labels = [ids[at] for at in range(0, len(ids), 128)]
    tiles = [128] * len(labels)
    return grouped(SimpleNamespace(rows=p.rows, columns=p.columns, lhs=p.lhs, rhs=p.rhs[labels], sizes=tiles))


def empty_groups_not_counted(p):
    return grouped(SimpleNamespace(**vars(p), lhs=p.lhs, rhs=p.rhs) if all(p.sizes) else SimpleNamespace(
        rows=p.rows, columns=p.columns, lhs=p.lhs, rhs=p.rhs, sizes=[n for n in p.sizes if n]))


@pytest.mark.parametrize("problems, kernel, most", [
    (attention_problems, causal_late, 40), (attention_problems, rest_unwritten, 80),
    (attention_problems, documents_ignored, 40), (attention_problems, batch_0, 40),
    (grouped_problems, labels_of_tiles, 140), (grouped_problems, empty_groups_not_counted, 40),
    (paged_problems, lambda p: paged(p, lambda p, length: -(-length // p.page_size) * p.page_size), 40),
    (paged_problems, lambda p: paged(p, lambda p, length: max(1, length - (length % p.page_size == 0))), 40),
])
def test_faults_are_found_and_shrink(problems, kernel, most):
    def fails(p):
        try:
            p.check(kernel(p), explain=False)
        except AssertionError:
            return True
        return False

    p = hypothesis.find(problems(**KINDS), fails, settings=hypothesis.settings(max_examples=120, **FAST))
    tokens = p.keys if isinstance(p, AttentionProblem) else p.rows if isinstance(p, GroupedProblem) else sum(p.lengths)
    assert tokens <= most


def last_pages(p):
    return {(n - 1) % p.page_size + 1 for n in p.lengths}


EDGES = {
    attention_problems: [lambda p, n=n: p.keys == n for n in (0, 1, 63, 64, 65, 127, 129)] + [
        lambda p: p.queries == 1 < p.keys, lambda p: 1 < p.queries < p.keys, lambda p: p.window and p.window[0] == 0,
        lambda p: p.window and p.window[0] >= p.keys > 0, lambda p: p.kv_heads == 1 < p.heads,
        lambda p: 1 < p.kv_heads < p.heads, lambda p: p.batch == 1, lambda p: p.batch == 2, lambda p: p.std == 0.5,
        lambda p: p.std == 2, lambda p: p.lengths and 0 in p.lengths, lambda p: p.lengths and 1 in p.lengths],
    grouped_problems: [lambda p, n=n: n in p.sizes for n in (0, 127, 128, 129)] + [
        lambda p: p.rows > sum(p.sizes), lambda p: p.depth % 16 != 0],
    paged_problems: [lambda p: p.page_size > 1 and 1 in last_pages(p),
                     lambda p: p.page_size > 1 and p.page_size in last_pages(p),
                     lambda p: np.any(np.diff(p.block_table[0]) < 0), lambda p: np.isnan(p.v_cache).any()],
    packed_lengths: [lambda lengths: 0 in lengths, lambda lengths: 1 in lengths, lambda lengths: len(lengths) > 2],
}


@pytest.mark.parametrize("problems", EDGES)
def test_every_edge_occurs(problems):
    drawn = []

    @hypothesis.settings(max_examples=150, phases=[Phase.generate], **FAST)
    @hypothesis.given(problems() if problems is packed_lengths else problems(**KINDS))
    def draw(p):
        drawn.append(p)

    draw()
    assert [i for i, occurs in enumerate(EDGES[problems]) if not any(map(occurs, drawn))] == []


def test_arguments_bound_what_is_drawn():
    @hypothesis.settings(max_examples=60, **FAST)
    @hypothesis.given(strategies.one_of(
        attention_problems(max_tokens=40, masks=("causal", "documents"), head_sizes=(24,), **KINDS),
        grouped_problems(max_rows=40, max_groups=3, depths=(24,), columns=(8,), **KINDS),
        paged_problems(max_tokens=40, max_requests=2, page_sizes=(8,), head_sizes=(24,), **KINDS),
        packed_lengths(max_tokens=40, max_sequences=3)))
    def is_in_bounds(p):
        if isinstance(p, AttentionProblem):
            assert p.queries <= p.keys <= 40 and p.window is None and p.q.shape == (p.batch, p.queries, p.heads, 24)
        elif isinstance(p, GroupedProblem):
            assert p.rows <= 40 and p.lhs.shape == (p.rows, 24)
            assert len(p.sizes) <= 3 and p.rhs.shape == (len(p.sizes), 24, 8)
        elif isinstance(p, PagedProblem):
            assert max(p.lengths) <= 40 and len(p.lengths) <= 2 and p.k_cache.shape[1:] == (8, p.kv_heads, 24)
        else:
            assert 0 < sum(p) <= 40 and len(p) <= 3

    is_in_bounds()
    with pytest.raises(ValueError, match='"torch" or "numpy"'):
        hypothesis.find(attention_problems(framework="jax"), bool)
