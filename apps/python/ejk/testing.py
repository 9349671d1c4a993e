"""Hypothesis strategies for tests of kernels: small problems, at the sizes where kernels fail.

    from hypothesis import given
    from ejk.testing import attention_problems

    @given(attention_problems(dtypes=("bfloat16",), max_tokens=192, masks=("full", "causal")))
    def test_kernel(p):
        p.check(kernel(p.q, p.k, p.v, causal=p.causal))

A problem is a description: sizes, mask, element type, standard deviation and seed. Hypothesis draws and shrinks
these alone; arrays have normal elements of that seed. `repr(p)` is one line that makes the problem again:

    p = ejk.testing.AttentionProblem(batch=1, queries=3, keys=3, ...)

What a kernel does not take is excluded by the arguments of a strategy, or by its `filter`:

    attention_problems().filter(lambda p: p.queries > 0 and p.heads == p.kv_heads)

`check(out, **options)` is assert_attention or assert_grouped_matmul of the result, with the options of the problem
and others. Needs Hypothesis and NumPy. Arrays are torch tensors, or NumPy's with framework="numpy", whose bfloat16
needs ml_dtypes.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Sequence

import ejk

try:
    from hypothesis import strategies as st
except ImportError as error:
    raise ImportError("ejk.testing needs Hypothesis: pip install hypothesis") from error

__all__ = ["AttentionProblem", "GroupedProblem", "PagedProblem", "attention_problems", "grouped_problems",
           "packed_lengths", "paged_problems"]

_EDGES = (1, 63, 64, 65, 127, 128, 129)  # of tiles
_FLOATS = ("float32", "bfloat16", "float16")
_STDS = (1.0, 0.5, 2.0)


@dataclass(frozen=True)
class _Problem:
    """Arrays of a type and framework; a seed and a name give their elements."""

    dtype: str
    std: float
    seed: int
    framework: str

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # Hypothesis would take a line for each member

    def _generator(self, name: str) -> Any:
        import numpy

        return numpy.random.default_rng([self.seed, *name.encode()])

    def _normal(self, name: str, *shape: int) -> Any:
        return self._generator(name).standard_normal(shape, "float32") * self.std

    def _array(self, array: Any, dtype: str) -> Any:
        if self.framework == "torch":
            import torch

            return torch.from_numpy(array).to(getattr(torch, dtype))
        if dtype == "bfloat16":
            import ml_dtypes

            return array.astype(ml_dtypes.bfloat16)
        return array.astype(dtype)

    def _integers(self, values: Any) -> Any:
        import numpy

        return self._array(numpy.array(values, "int32"), "int32")


@dataclass(frozen=True)
class AttentionProblem(_Problem):
    """q, k, v (batch, tokens, heads, size). `causal` and `window` are aligned at the last query and key. `lengths` are
    those of documents packed in one row, `cu_seqlens` their boundaries."""

    batch: int
    queries: int
    keys: int
    heads: int
    kv_heads: int
    head_size: int
    causal: bool
    window: tuple[int, int] | None
    lengths: tuple[int, ...] | None

    @functools.cached_property
    def q(self) -> Any:
        return self._array(self._normal("q", self.batch, self.queries, self.heads, self.head_size), self.dtype)

    @functools.cached_property
    def k(self) -> Any:
        return self._array(self._normal("k", self.batch, self.keys, self.kv_heads, self.head_size), self.dtype)

    @functools.cached_property
    def v(self) -> Any:
        return self._array(self._normal("v", self.batch, self.keys, self.kv_heads, self.head_size), self.dtype)

    @functools.cached_property
    def cu_seqlens(self) -> Any:
        if self.lengths is None:
            return None
        return self._integers([sum(self.lengths[:i]) for i in range(len(self.lengths) + 1)])

    @property
    def options(self) -> dict[str, Any]:
        terms = ["causal(align=bottom-right)"] if self.causal else []
        if self.window:
            terms.append("local({}, {}, align=bottom-right)".format(*self.window))
        if self.lengths is None:
            return {"mask": " & ".join(terms) or None}
        return {"mask": " & ".join([*terms, "documents(cu)"]), "cu": self.cu_seqlens}

    def check(self, out: Any, **options: Any) -> ejk.Result:
        __tracebackhide__ = True
        return ejk.assert_attention(out, self.q, self.k, self.v, **self.options | options)


@dataclass(frozen=True)
class GroupedProblem(_Problem):
    """lhs (rows, depth), rhs (groups, depth, columns), group_sizes int32 of `sizes`. Rows after the last group belong
    to none: their results are 0."""

    sizes: tuple[int, ...]
    rows: int
    depth: int
    columns: int

    @functools.cached_property
    def lhs(self) -> Any:
        return self._array(self._normal("lhs", self.rows, self.depth), self.dtype)

    @functools.cached_property
    def rhs(self) -> Any:
        return self._array(self._normal("rhs", len(self.sizes), self.depth, self.columns), self.dtype)

    @functools.cached_property
    def group_sizes(self) -> Any:
        return self._integers(self.sizes)

    def check(self, out: Any, **options: Any) -> ejk.Result:
        __tracebackhide__ = True
        return ejk.assert_grouped_matmul(out, self.lhs, self.rhs, self.group_sizes, **options)


@dataclass(frozen=True)
class PagedProblem(_Problem):
    """q (requests, heads, size), one query each, the last of `lengths` keys; k_cache, v_cache (pages, page_size,
    kv_heads, size), block_table (requests, pages of the longest), seq_lens int32. Pages are in random order. Slots
    after a request's last key are NaN, as are the `spare` pages; entries after its last page name one of them."""

    lengths: tuple[int, ...]
    page_size: int
    spare: int
    heads: int
    kv_heads: int
    head_size: int

    @functools.cached_property
    def _pages(self) -> list[list[int]]:
        """The pages of each request, then the spare ones."""
        counts = [-(-length // self.page_size) for length in self.lengths] + [self.spare]
        order = iter(self._generator("pages").permutation(sum(counts)).tolist())
        return [[next(order) for _ in range(count)] for count in counts]

    def _cache(self, name: str) -> Any:
        *requests, spare = self._pages
        cache = self._normal(name, sum(map(len, self._pages)), self.page_size, self.kv_heads, self.head_size)
        cache[spare] = float("nan")
        for pages, length in zip(requests, self.lengths):
            cache[pages[-1], length - (len(pages) - 1) * self.page_size:] = float("nan")
        return self._array(cache, self.dtype)

    @functools.cached_property
    def q(self) -> Any:
        return self._array(self._normal("q", len(self.lengths), self.heads, self.head_size), self.dtype)

    @functools.cached_property
    def k_cache(self) -> Any:
        return self._cache("k")

    @functools.cached_property
    def v_cache(self) -> Any:
        return self._cache("v")

    @functools.cached_property
    def block_table(self) -> Any:
        *requests, spare = self._pages
        width = max(map(len, requests))
        return self._integers([pages + spare[:1] * (width - len(pages)) for pages in requests])

    @functools.cached_property
    def seq_lens(self) -> Any:
        return self._integers(self.lengths)

    def check(self, out: Any, **options: Any) -> ejk.Result:
        __tracebackhide__ = True
        options = {"block_table": self.block_table, "seq_lens": self.seq_lens} | options
        return ejk.assert_attention(out, self.q, self.k_cache, self.v_cache, **options)


def _sizes(low: int, high: int, edges: Sequence[int] = _EDGES) -> st.SearchStrategy[int]:
    """Integers, edges four times as often as all others. They are one choice, which shrinks past the edges."""
    edges = [edge for edge in edges if low <= edge <= high]
    drawn = st.integers(low, high + (4 * (high - low + 1) if edges else 0))
    return drawn.map(lambda n: n if n <= high else edges[(n - high - 1) % len(edges)])


def _lengths(max_sum: int, max_count: int, edges: Sequence[int] = _EDGES) -> st.SearchStrategy[tuple[int, ...]]:
    """A few lengths whose sum is in bounds: short ones, empty ones and those at edges."""

    def clipped(lengths: list[int]) -> tuple[int, ...]:
        left = [max_sum - sum(lengths[:i]) for i in range(len(lengths))]
        return tuple(max(0, min(length, most)) for length, most in zip(lengths, left))

    one = st.one_of(st.integers(0, min(4, max_sum)), _sizes(0, max_sum, edges))
    return st.lists(one, min_size=1, max_size=max_count).map(clipped)


def packed_lengths(*, max_tokens: int = 192, max_sequences: int = 8) -> st.SearchStrategy[list[int]]:
    """Lengths of packed sequences, empty ones among them, whose sum is 1 to `max_tokens`."""
    return _lengths(max_tokens, max_sequences).filter(any).map(list)


def _values(draw: Any, dtypes: Sequence[str], framework: str) -> dict[str, Any]:
    if framework not in ("torch", "numpy"):
        raise ValueError(f'framework is "torch" or "numpy", not {framework!r}')
    return {"dtype": draw(st.sampled_from(dtypes)), "std": draw(st.sampled_from(_STDS)),
            "seed": int.from_bytes(draw(st.binary(min_size=2, max_size=2)), "big"), "framework": framework}


def _heads(draw: Any, head_sizes: Sequence[int]) -> dict[str, int]:
    kv_heads = draw(st.sampled_from((1, 2, 3)))
    return {"kv_heads": kv_heads, "heads": kv_heads * draw(st.sampled_from((1, 2, 4))),
            "head_size": draw(st.sampled_from(head_sizes))}


@st.composite
def attention_problems(draw: Any, *, dtypes: Sequence[str] = _FLOATS, max_tokens: int = 192,
                       masks: Sequence[str] = ("full", "causal", "window", "documents"),
                       head_sizes: Sequence[int] = (32, 64), framework: str = "torch") -> AttentionProblem:
    """Attention of a batch of 1 or 2 with as many queries as keys, fewer, or one; of 0 tokens, too. `masks` are
    "full", "causal", "window" and "documents"; the last two are causal in half of the problems."""
    mask = draw(st.sampled_from(masks))
    causal = mask == "causal" or mask in ("window", "documents") and draw(st.booleans())
    lengths, window = None, None
    if mask == "documents":
        lengths = tuple(draw(packed_lengths(max_tokens=max_tokens)))
        batch, keys = 1, sum(lengths)
        queries = keys
    else:
        batch, keys = draw(st.sampled_from((1, 2))), draw(_sizes(0, max_tokens))
        queries = draw(st.one_of(st.just(keys), st.just(min(keys, 1)), _sizes(0, keys)))
    if mask == "window":
        side = _sizes(0, keys + 1, (0, keys // 4, keys // 2, keys))
        window = (draw(side), 0 if causal else draw(side))
    return AttentionProblem(**_values(draw, dtypes, framework), batch=batch, queries=queries, keys=keys, causal=causal,
                            window=window, lengths=lengths, **_heads(draw, head_sizes))


@st.composite
def grouped_problems(draw: Any, *, dtypes: Sequence[str] = _FLOATS, max_rows: int = 384, max_groups: int = 6,
                     depths: Sequence[int] = (16, 64, 65, 100, 128, 192), columns: Sequence[int] = (16, 64, 65, 128),
                     framework: str = "torch") -> GroupedProblem:
    """Grouped products with empty groups, groups around 64 and 128 rows, and up to 129 rows that belong to no group."""
    sizes = draw(_lengths(max_rows, max_groups, _EDGES[1:]))
    rows = sum(sizes) + draw(st.one_of(st.just(0), _sizes(0, min(129, max_rows - sum(sizes)))))
    return GroupedProblem(**_values(draw, dtypes, framework), sizes=sizes, rows=rows,
                          depth=draw(st.sampled_from(depths)), columns=draw(st.sampled_from(columns)))


@st.composite
def paged_problems(draw: Any, *, dtypes: Sequence[str] = _FLOATS, max_tokens: int = 192, max_requests: int = 4,
                   page_sizes: Sequence[int] = (16, 1, 64), head_sizes: Sequence[int] = (32, 64),
                   framework: str = "torch") -> PagedProblem:
    """Decoding from paged caches: requests of 1 to `max_tokens` keys, whose last pages are often full or of one key."""
    page_size = draw(st.sampled_from(page_sizes))
    ends = [n for start in range(0, max_tokens, page_size) for n in (start + 1, start + page_size)]
    lengths = draw(st.lists(_sizes(1, max_tokens, ends), min_size=1, max_size=max_requests))
    return PagedProblem(**_values(draw, dtypes, framework), lengths=tuple(lengths), page_size=page_size,
                        spare=draw(st.integers(1, 2)), **_heads(draw, head_sizes))
