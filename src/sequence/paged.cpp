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

// Adds the next sequence: `row_of(head)` has as many pages as its length needs.
template <class F>
void add_sequence(PagedSequences& to, std::int64_t length, std::int64_t page_count, const ArraySource& table,
                  F&& row_of) {
  const std::int64_t request = to.count();
  const std::optional<std::int64_t> end = core::checked_add(to.offsets.back(), length);
  if (!end) throw invalid("{}: the lengths of all requests exceed 64 bits", table.name());
  for (std::int64_t head = 0; head < to.tables && page_count > 0; ++head) {
    const std::int64_t* const row = row_of(head);
    for (std::int64_t slot = 0; slot < page_count; ++slot) {
      const std::int64_t page = row[slot];
      if (page < 0 || page >= to.size.pages)
        throw invalid("{}: {}request {} has page {} in slot {}, and the cache has {} pages", table.name(),
                      to.tables == 1 ? "" : fmt::format("key/value head {}, ", head), request, page, slot,
                      to.size.pages);
      to.pages.push_back(page);
    }
  }
  to.offsets.push_back(*end);
  to.first_page.push_back(to.first_page.back() + page_count);
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
      const IndexRange heads{start[1], start[1] + count[1]}, elements{start[2], start[2] + count[2]};
      const auto read_heads = [&](IndexRange of, std::byte* into) {
        const auto page = static_cast<std::size_t>(at / s.size.page_size);
        read_page(s.pages_of(sequence, of.begin)[page], {slot, slot + some}, of, elements, into, token_bytes);
      };
      const std::int64_t head_bytes = elements.count() * size_of(dtype());
      const std::int64_t together = s.tables == 1 ? heads.count() : 1;
      for (std::int64_t h = heads.begin; h < heads.end && head_bytes > 0; h += together)
        read_heads({h, h + together}, to + (h - heads.begin) * head_bytes);
      to += some * token_bytes;
      token += some;
    }
  }

 private:
  static ArrayType type_of_tokens(const ArraySource& cache, CacheLayout layout, const PagedSequences& s) {
    const Shape& shape = cache.shape();
    return {cache.dtype(), {s.offsets.back(), shape[layout == CacheLayout::nhd ? 2 : 1], shape[3]}};
  }

  // To tokens that are `token_bytes` apart, their heads side by side. A table of each head: of one head.
  void read_page(std::int64_t page, IndexRange slots, IndexRange heads, IndexRange elements, std::byte* to,
                 std::int64_t token_bytes) const {
    const bool is_nhd = layout_ == CacheLayout::nhd;
    const auto read = [&](std::byte* into) {
      if (is_nhd)
        inner().read(std::array{page, slots.begin, heads.begin, elements.begin},
                     std::array{std::int64_t{1}, slots.count(), heads.count(), elements.count()}, into);
      else
        inner().read(std::array{page, heads.begin, slots.begin, elements.begin},
                     std::array{std::int64_t{1}, heads.count(), slots.count(), elements.count()}, into);
    };
    const std::int64_t row = elements.count() * size_of(dtype());
    if (row * heads.count() == token_bytes && (is_nhd || heads.count() == 1)) return read(to);
    thread_local std::vector<std::byte> by_head;
    by_head.resize(static_cast<std::size_t>(slots.count() * heads.count() * row));
    read(by_head.data());
    for (std::int64_t h = 0; h < heads.count(); ++h)
      for (std::int64_t t = 0; t < slots.count(); ++t)
        std::memcpy(to + t * token_bytes + h * row, by_head.data() + (h * slots.count() + t) * row,
                    static_cast<std::size_t>(row));
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
  const bool is_nhd = layout == CacheLayout::nhd;
  const CacheSize size{shape[0], shape[is_nhd ? 1 : 2], shape[is_nhd ? 2 : 1]};
  if (size.page_size < 1) throw invalid("{}: its pages hold no token: {}", cache.name(), to_string(shape));
  return size;
}

PagedSequences read_block_table(const ArraySource& table, const ArraySource& lengths, CacheSize cache) {
  const Shape& shape = table.shape();
  const bool by_head = shape.size() == 3;
  if (shape.size() != 2 && !by_head)
    throw invalid("{}: a block table is (requests, pages) or (heads, requests, pages), not of shape {}",
                  table.name(), to_string(shape));
  if (!is_integer(table.dtype()))
    throw invalid("{}: a block table has integers, not {}", table.name(), name_of(table.dtype()));
  if (by_head && shape[0] != cache.heads)
    throw invalid("{}: there are tables of {} key/value heads, and the cache has {}", table.name(), shape[0],
                  cache.heads);
  PagedSequences all;
  all.size = cache;
  if (by_head) all.tables = cache.heads;
  const std::size_t request_axis = by_head ? 1 : 0;
  const std::int64_t most = shape.back();
  const std::vector<std::int64_t> request_lengths = core::read_integers(lengths, "lengths of requests");
  require_sequences(lengths, std::ssize(request_lengths), table, shape[request_axis]);
  std::vector<std::int64_t> row;
  std::vector<std::byte> raw;
  for (std::int64_t request = 0; request < std::ssize(request_lengths); ++request) {
    const std::int64_t length = request_lengths[static_cast<std::size_t>(request)];
    if (length < 0) throw invalid("{}: the length of request {} is {}", lengths.name(), request, length);
    const std::int64_t needed = core::ceil_div(length, cache.page_size);
    if (needed > most)
      throw invalid("{}: request {} has {} tokens, which take {} pages of {}, and its row in {} has {}",
                    lengths.name(), request, length, needed, cache.page_size, table.name(), most);
    row.resize(static_cast<std::size_t>(needed));
    add_sequence(all, length, needed, table, [&](std::int64_t head) {
      core::read_integer_box(table, by_head ? Shape{head, request, 0} : Shape{request, 0},
                             by_head ? Shape{1, 1, needed} : Shape{1, needed}, raw, row.data());
      return row.data();
    });
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
                 [&](std::int64_t) { return pages.data() + begins[request]; });
  }
  return all;
}

PagedSequences with_lengths(const PagedSequences& of, const ArraySource* table,
                            const std::function<std::int64_t(std::int64_t keys)>& length) {
  PagedSequences all;
  all.size = of.size;
  all.tables = of.tables;
  const bool by_head = table != nullptr && table->shape().size() == 3;
  std::vector<std::byte> raw;
  for (std::int64_t s = 0; s < of.count(); ++s) {
    const auto at = static_cast<std::size_t>(s);
    const std::int64_t own = of.offsets[at + 1] - of.offsets[at],
                       wanted = std::max<std::int64_t>(length(own), 0),
                       own_pages = of.first_page[at + 1] - of.first_page[at];
    std::int64_t pages = core::ceil_div(wanted, of.size.page_size);
    const std::int64_t more = std::max<std::int64_t>(pages - own_pages, 0);
    bool is_valid = more == 0 || (table != nullptr && pages <= table->shape().back());
    std::vector<std::int64_t> further(is_valid ? static_cast<std::size_t>(more * of.tables) : 0);
    for (std::int64_t head = 0; head < of.tables && is_valid && more > 0; ++head)
      core::read_integer_box(*table, by_head ? Shape{head, s, own_pages} : Shape{s, own_pages},
                             by_head ? Shape{1, 1, more} : Shape{1, more}, raw, further.data() + head * more);
    for (const std::int64_t page : further) is_valid = is_valid && page >= 0 && page < of.size.pages;
    if (!is_valid) pages = own_pages;
    for (std::int64_t head = 0; head < of.tables; ++head) {
      const auto row = of.pages_of(s, head).first(static_cast<std::size_t>(std::min(pages, own_pages)));
      all.pages.insert(all.pages.end(), row.begin(), row.end());
      if (is_valid)
        all.pages.insert(all.pages.end(), further.begin() + head * more, further.begin() + (head + 1) * more);
    }
    const auto end = core::checked_add(all.offsets.back(), is_valid ? wanted : own);
    if (!end) return of;
    all.offsets.push_back(*end);
    all.first_page.push_back(all.first_page.back() + pages);
  }
  return all;
}

PagedSequences with_last_pages(PagedSequences of, const std::vector<std::int64_t>& last) {
  for (std::size_t s = 0; s < last.size(); ++s) {
    const std::int64_t count = of.first_page[s + 1] - of.first_page[s];
    for (std::int64_t head = 0; head < of.tables && last[s] >= 0 && count > 0; ++head)
      of.pages[static_cast<std::size_t>(of.first_page[s] * of.tables + (head + 1) * count - 1)] = last[s];
  }
  return of;
}

std::shared_ptr<const ArraySource> paged_tokens(const std::shared_ptr<const ArraySource>& cache,
                                                CacheLayout layout,
                                                std::shared_ptr<const PagedSequences> sequences) {
  const CacheSize size = cache_size(*cache, layout);
  if (size.pages != sequences->size.pages || size.page_size != sequences->size.page_size)
    throw invalid("{}: it has {} pages of {}, and the other cache {} of {}", cache->name(), size.pages,
                  size.page_size, sequences->size.pages, sequences->size.page_size);
  if (sequences->tables != 1 && sequences->tables != size.heads)
    throw invalid("{}: it has {} heads, and there are tables of {}", cache->name(), size.heads,
                  sequences->tables);
  return std::make_shared<PagedTokens>(cache, layout, std::move(sequences));
}

}  // namespace ejk
