// Options for paged caches, and the tokens of their pages.
// tests: tests/cli/attention/paged.case
#include "attention_paged.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include "ejk/attention_check.hpp"
#include "ejk/paged.hpp"

namespace ejk::app {

void declare_paged(OptionSet& set, PagedFlags& words) {
  add_reference(
      set, "--block-table", words.block_table,
      "pages of each request (requests, pages)\n"
      "K and V are then caches. Or of each key/value head, (heads, requests, pages), as of a sparse selection. "
      "K and V (pages, page size, heads, size), Q (requests, heads, size): packed tokens. Entries past a "
      "request's length are never read, nor are the slots of its last page. Decoding references, as mx(V, S), are "
      "decoded page by page. The mask is "
      "'causal(align=bottom-right)' unless one is given.")
      .needs("--seq-lens")
      .excludes("--kv-indptr")
      .group(kPagedGroup);
  add_reference(set, "--seq-lens", words.seq_lens,
                "keys of each request (requests,)\nWith those of its queries, the last of them.")
      .needs("--block-table")
      .group(kPagedGroup);
  add_reference(set, "--kv-indptr", words.indptr,
                "or, as flashinfer, where its pages begin\n"
                "(requests + 1,). Several queries of a request, in both forms, are --cu-seqlens REF.")
      .needs("--kv-indices")
      .group(kPagedGroup);
  add_reference(set, "--kv-indices", words.indices, "the pages of all requests")
      .needs("--last-page-len")
      .group(kPagedGroup);
  add_reference(set, "--last-page-len", words.last_page_len, "tokens in the last page of each\n(requests,).")
      .needs("--kv-indptr")
      .group(kPagedGroup);
  using Layout = PagedFlags::Layout;
  add_choice(
      set, "--cache-layout", words.layout, {{"nhd", Layout::nhd}, {"hnd", Layout::hnd}, {"jax", Layout::jax}},
      "LAYOUT",
      "axes of the caches, nhd by default\n"
      "hnd: (pages, heads, page size, size). jax: K is (pages, page size, 2 heads, size) with keys at even and "
      "values at odd heads, and V is not given. flashinfer's (pages, 2, ...) is \"kv.npy[:,0]\" and "
      "\"kv.npy[:,1]\".")
      .group(kPagedGroup);
}

void check_paged(const PagedFlags& words, bool has_values) {
  if (words.layout && !words.any()) throw usage("--cache-layout requires --block-table or --kv-indptr");
  if (words.are_combined() && has_values)
    throw usage("--cache-layout jax: K holds keys and values, and V is given, too");
}

namespace {

std::string text_of_last_pages(const PagedSequences& of, const std::vector<std::int64_t>& last) {
  constexpr int kMost = 4;
  std::string text;
  int named = 0;
  for (std::size_t s = 0; s < last.size() && named <= kMost; ++s) {
    const auto own = of.pages_of(static_cast<std::int64_t>(s), 0);
    if (last[s] < 0 || own.empty()) continue;
    text += ++named > kMost ? ", ..."
                            : fmt::format("{}sequence {} is page {}, not page {}",
                                          named == 1 ? "the last page of " : ", of ", s, last[s], own.back());
  }
  return text;
}

}  // namespace

OpenedPages open_paged(const PagedFlags& words, const BufferedInput& q, BufferedInput& k,
                       std::optional<BufferedInput>& v, AttentionSettings& s, Job& job) {
  const CacheLayout layout = words.layout == PagedFlags::Layout::hnd ? CacheLayout::hnd : CacheLayout::nhd;
  std::shared_ptr<const ArraySource>& keys = k.source;
  if (words.are_combined()) {
    const auto every_second = [&](const char* slice) { return slice_array(keys, slice, keys->name()); };
    v = BufferedInput{"v", every_second("[:,:,1::2]")};
    keys = every_second("[:,:,::2]");
  }
  const CacheSize size = cache_size(*keys, layout);
  constexpr std::int64_t kEntryBytes = 32;  // that are kept and read of an entry of a table
  const auto pages =
      words.has_table() ? job.open("block_table", words.block_table) : job.open("kv_indices", words.indices);
  constexpr std::int64_t kMostEntries = std::int64_t{1} << 50;
  job.require_memory(kEntryBytes * std::min(element_count(pages->shape()), kMostEntries));
  const auto open = [&](const char* role, const std::string& word) { return job.open(role, word); };
  const auto sequences = std::make_shared<const PagedSequences>(
      words.has_table() ? read_block_table(*pages, *open("seq_lens", words.seq_lens), size)
                        : read_page_indices(*open("kv_indptr", words.indptr), *pages,
                                            *open("last_page_len", words.last_page_len), size));
  OpenedPages opened{sequences, words.has_table() ? pages : nullptr, k.source, v->source, layout};
  for (BufferedInput* cache : {&k, &*v}) cache->source = paged_tokens(cache->source, layout, sequences);
  s.cu_seqlens_kv = IntegerArray(std::vector(sequences->offsets));
  if (s.cu_seqlens_q) return opened;
  const Shape& shape = q.source->shape();
  if (!shape.empty() && shape[0] != sequences->count())
    throw Error(Error::Kind::input, fmt::format("{}: {} queries, and {} requests have pages",
                                                q.source->name(), shape[0], sequences->count()))
        .hint("--cu-seqlens REF says which queries are those of a request; without it each has one");
  std::vector<std::int64_t> one_each(static_cast<std::size_t>(sequences->count() + 1));
  std::iota(one_each.begin(), one_each.end(), 0);
  s.cu_seqlens_q = IntegerArray(std::move(one_each));
  return opened;
}

Tried page_faults(const OpenedPages& pages, const std::vector<HeadMasks>& masks, bool usual) {
  const std::int64_t page_size = pages.sequences->size.page_size;
  using Length = std::function<std::int64_t(std::int64_t keys)>;
  const Length shorter =
                   [page_size](std::int64_t keys) { return std::max<std::int64_t>(0, keys - page_size); },
               whole = [page_size](std::int64_t keys) { return keys / page_size * page_size; };
  Tried tried;
  // Queries are at the end of `length` keys.
  const auto add_causal = [&](const char* text, const Length& length) {
    HeadMasks of;
    of.mask = [length](std::int64_t, std::int64_t, std::int64_t queries, std::int64_t keys) {
      return causal_mask(queries, keys, length(keys) - queries);
    };
    tried.masks.push_back({text, std::move(of)});
  };
  // Queries keep their positions, and only the first `length` keys are read.
  const auto add_prefix = [&](const char* text, const Length& length) {
    std::vector<HeadMasks> parts = masks;
    parts.emplace_back().mask = [length](std::int64_t, std::int64_t, std::int64_t queries,
                                         std::int64_t keys) {
      return prefix_mask(queries, keys, length(keys));
    };
    tried.masks.push_back({text, conjunction_of(std::move(parts))});
  };
  if (usual) {
    add_causal("that of lengths one page shorter", shorter);
    add_causal("that of lengths in whole pages, rounded down", whole);
  }
  add_prefix("without the last keys, as many as a page holds", shorter);
  add_prefix("without pages that are not full", whole);
  constexpr std::int64_t kLongestPage = std::int64_t{1} << 30;
  if (page_size > kLongestPage) return tried;
  const auto keys_of = [pages](std::string text, PagedSequences of) {
    std::vector<std::int64_t> offsets = of.offsets;
    const auto sequences = std::make_shared<const PagedSequences>(std::move(of));
    return TriedKeys{std::move(text), paged_tokens(pages.k, pages.layout, sequences),
                     paged_tokens(pages.v, pages.layout, sequences), std::move(offsets)};
  };
  const auto add_lengths = [&](const char* text, const Length& length) {
    PagedSequences other = with_lengths(*pages.sequences, pages.table.get(), length);
    if (other.offsets != pages.sequences->offsets) tried.keys.push_back(keys_of(text, std::move(other)));
  };
  add_lengths("sequences are taken for one page longer, where the table has it",
              [page_size](std::int64_t keys) { return keys + page_size; });
  add_lengths("the lengths of sequences are rounded up to whole pages",
              [page_size](std::int64_t keys) { return (keys + page_size - 1) / page_size * page_size; });
  add_lengths("sequences are taken for one token longer", [](std::int64_t keys) { return keys + 1; });
  tried.pages = TriedPages{
      pages.sequences->size.pages, [pages, keys_of](const std::vector<std::int64_t>& last) {
        return keys_of(text_of_last_pages(*pages.sequences, last), with_last_pages(*pages.sequences, last));
      }};
  return tried;
}

}  // namespace ejk::app
