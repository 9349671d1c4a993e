// Paged caches as packed tokens. A box is read page by page: the slots of a page that it has, in one read.
// tests: tests/sequence/test_paged.cpp
#include "ejk/paged.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>

#include "core/checked.hpp"
#include "core/offsets.hpp"
#include "core/require.hpp"

namespace ejk {

namespace {

using core::invalid;

// Adds the next sequence: `page_of(slot)` for as many pages as its length needs.
template <class F>
void add_sequence(PagedSequences& to, std::int64_t length, std::int64_t page_count, const ArraySource& table,
                  F&& page_of) {
  const std::int64_t request = to.count();
  const std::optional<std::int64_t> end = core::checked_add(to.offsets.back(), length);
  if (!end) throw invalid("{}: the lengths of all requests exceed 64 bits", table.name());
  for (std::int64_t slot = 0; slot < page_count; ++slot) {
    const std::int64_t page = page_of(slot);
    if (page < 0 || page >= to.size.pages)
      throw invalid("{}: request {} has page {} in slot {}, and the cache has {} pages", table.name(),
                    request, page, slot, to.size.pages);
    to.pages.push_back(page);
  }
  to.offsets.push_back(*end);
  to.first_page.push_back(std::ssize(to.pages));
}

void require_sequences(const ArraySource& array, std::int64_t count, const ArraySource& of,
                       std::int64_t expected) {
  if (count != expected)
    throw invalid("{}: there are {} requests here, and {} in {}", array.name(), count, expected, of.name());
}

class PagedTokens : public ForwardingSource {
 public:
  PagedTokens(const std::shared_ptr<const ArraySource>& cache, CacheLayout layout,
              std::shared_ptr<const PagedSequences> sequences)
      : ForwardingSource(cache, type_of_tokens(*cache, layout, *sequences),
                         ArrayAccess(cache->access().order)),
        layout_(layout),
        sequences_(std::move(sequences)) {}

  void read(std::span<const std::int64_t> start, std::span<const std::int64_t> count,
            void* out) const override {
    const std::int64_t token_bytes = count[1] * count[2] * size_of(dtype());
    auto* to = static_cast<std::byte*>(out);
    const PagedSequences& s = *sequences_;
    for (std::int64_t token = start[0], end = start[0] + count[0]; token < end;) {
      const auto after = std::upper_bound(s.offsets.begin(), s.offsets.end(), token);
      const std::int64_t sequence = after - s.offsets.begin() - 1, at = token - after[-1];
      const std::int64_t slot = at % s.size.page_size,
                         some = std::min({end, *after, token + s.size.page_size - slot}) - token;
      const std::int64_t page = s.pages[static_cast<std::size_t>(
          s.first_page[static_cast<std::size_t>(sequence)] + at / s.size.page_size)];
      read_page(page, slot, some, start, count, to);
      to += some * token_bytes;
      token += some;
    }
  }

 private:
  static ArrayType type_of_tokens(const ArraySource& cache, CacheLayout layout, const PagedSequences& s) {
    const Shape& shape = cache.shape();
    return {cache.dtype(), {s.offsets.back(), shape[layout == CacheLayout::nhd ? 2 : 1], shape[3]}};
  }

  void read_page(std::int64_t page, std::int64_t slot, std::int64_t tokens,
                 std::span<const std::int64_t> start, std::span<const std::int64_t> count,
                 std::byte* to) const {
    if (count[1] == 0 || count[2] == 0) return;
    if (layout_ == CacheLayout::nhd) {
      inner().read(std::array{page, slot, start[1], start[2]},
                   std::array{std::int64_t{1}, tokens, count[1], count[2]}, to);
      return;
    }
    const auto row = static_cast<std::size_t>(count[2] * size_of(dtype()));
    thread_local std::vector<std::byte> by_head;
    by_head.resize(static_cast<std::size_t>(tokens * count[1]) * row);
    inner().read(std::array{page, start[1], slot, start[2]},
                 std::array{std::int64_t{1}, count[1], tokens, count[2]}, by_head.data());
    for (std::int64_t h = 0; h < count[1]; ++h)
      for (std::int64_t t = 0; t < tokens; ++t)
        std::memcpy(to + static_cast<std::size_t>(t * count[1] + h) * row,
                    by_head.data() + static_cast<std::size_t>(h * tokens + t) * row, row);
  }

  CacheLayout layout_;
  std::shared_ptr<const PagedSequences> sequences_;
};

}  // namespace

std::string_view name_of(CacheLayout layout) { return layout == CacheLayout::nhd ? "nhd" : "hnd"; }

CacheSize cache_size(const ArraySource& cache, CacheLayout layout) {
  const Shape& shape = cache.shape();
  if (shape.size() != 4)
    throw invalid(
        "{}: a cache is {}, not of shape {}", cache.name(),
        layout == CacheLayout::nhd ? "(pages, page size, heads, size)" : "(pages, heads, page size, size)",
        to_string(shape));
  const CacheSize size{shape[0], shape[layout == CacheLayout::nhd ? 1 : 2]};
  if (size.page_size < 1) throw invalid("{}: its pages hold no token: {}", cache.name(), to_string(shape));
  return size;
}

PagedSequences read_block_table(const ArraySource& table, const ArraySource& lengths, CacheSize cache) {
  if (table.shape().size() != 2)
    throw invalid("{}: a block table is (requests, pages), not of shape {}", table.name(),
                  to_string(table.shape()));
  if (!is_integer(table.dtype()))
    throw invalid("{}: a block table has integers, not {}", table.name(), name_of(table.dtype()));
  PagedSequences all;
  all.size = cache;
  const std::vector<std::int64_t> of_requests = core::read_integers(lengths, "lengths of requests");
  require_sequences(lengths, std::ssize(of_requests), table, table.shape()[0]);
  std::vector<std::int64_t> row;
  std::vector<std::byte> raw;
  for (std::int64_t request = 0; request < std::ssize(of_requests); ++request) {
    const std::int64_t length = of_requests[static_cast<std::size_t>(request)];
    if (length < 0) throw invalid("{}: the length of request {} is {}", lengths.name(), request, length);
    const std::int64_t needed = core::ceil_div(length, cache.page_size);
    if (needed > table.shape()[1])
      throw invalid("{}: request {} has {} tokens, which take {} pages of {}, and its row in {} has {}",
                    lengths.name(), request, length, needed, cache.page_size, table.name(), table.shape()[1]);
    row.resize(static_cast<std::size_t>(needed));
    if (needed > 0) core::read_integer_box(table, {request, 0}, {1, needed}, raw, row.data());
    add_sequence(all, length, needed, table,
                 [&](std::int64_t slot) { return row[static_cast<std::size_t>(slot)]; });
  }
  return all;
}

PagedSequences read_page_indices(const ArraySource& indptr, const ArraySource& indices,
                                 const ArraySource& last_page_len, CacheSize cache) {
  PagedSequences all;
  all.size = cache;
  const std::vector<std::int64_t> begins = core::read_offsets(indptr),
                                  last = core::read_integers(last_page_len, "lengths of last pages");
  require_sequences(last_page_len, std::ssize(last), indptr, std::ssize(begins) - 1);
  if (indices.shape().size() != 1 || !is_integer(indices.dtype()))
    throw invalid("{}: indices of pages are integers (pages,), not {} {}", indices.name(),
                  name_of(indices.dtype()), to_string(indices.shape()));
  if (begins.back() > indices.shape()[0])
    throw invalid("{}: its last element is {}, and {} has {} pages", indptr.name(), begins.back(),
                  indices.name(), indices.shape()[0]);
  std::vector<std::int64_t> pages(static_cast<std::size_t>(begins.back()));
  std::vector<std::byte> raw;
  if (!pages.empty()) core::read_integer_box(indices, {0}, {begins.back()}, raw, pages.data());
  for (std::size_t request = 0; request < last.size(); ++request) {
    const std::int64_t count = begins[request + 1] - begins[request];
    if (count > 0 && (last[request] < 1 || last[request] > cache.page_size))
      throw invalid("{}: the last page of request {} holds {} tokens, of a page of {}", last_page_len.name(),
                    request, last[request], cache.page_size);
    const std::optional<std::int64_t> before =
        core::checked_mul(std::max<std::int64_t>(count - 1, 0), cache.page_size);
    if (!before) throw invalid("{}: the lengths of all requests exceed 64 bits", indptr.name());
    add_sequence(all, count == 0 ? 0 : *before + last[request], count, indices,
                 [&](std::int64_t slot) { return pages[static_cast<std::size_t>(begins[request] + slot)]; });
  }
  return all;
}

std::shared_ptr<const ArraySource> paged_tokens(const std::shared_ptr<const ArraySource>& cache,
                                                CacheLayout layout,
                                                std::shared_ptr<const PagedSequences> sequences) {
  const CacheSize size = cache_size(*cache, layout);
  if (size.pages != sequences->size.pages || size.page_size != sequences->size.page_size)
    throw invalid("{}: it has {} pages of {}, and the other cache {} of {}", cache->name(), size.pages,
                  size.page_size, sequences->size.pages, sequences->size.page_size);
  return std::make_shared<PagedTokens>(cache, layout, std::move(sequences));
}

}  // namespace ejk
