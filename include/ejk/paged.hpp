// Paged KV caches as packed tokens: a block table lists the pages of each sequence, and the cache's elements
// are gathered when they are read. Entries of the table past a sequence's length are never read, nor are the
// unused slots of its last page. Cost: the gathered elements; 8 bytes of memory for each page in use.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "ejk/array.hpp"

namespace ejk {

/// Axes of a cache: nhd (pages, page size, heads, size), hnd (pages, heads, page size, size).
enum class CacheLayout { nhd, hnd };

std::string_view name_of(CacheLayout layout);

/// Pages, slots of a page, key/value heads.
struct CacheSize {
  std::int64_t pages = 0, page_size = 0, heads = 1;
};
/// Throws Error{input} for another rank, or pages without slots.
CacheSize cache_size(const ArraySource& cache, CacheLayout layout);

struct PagedSequences {
  CacheSize size;
  std::vector<std::int64_t> offsets{0};     // of the first token of each sequence, and all: cu_seqlens
  std::vector<std::int64_t> pages;          // of all sequences, in order, of each head by head
  std::vector<std::int64_t> first_page{0};  // of each sequence, in pages of one head
  std::int64_t tables = 1;                  // those of all heads are the same, or each head has its own

  std::int64_t count() const { return static_cast<std::int64_t>(offsets.size()) - 1; }
  /// Those of a sequence and head.
  std::span<const std::int64_t> pages_of(std::int64_t sequence, std::int64_t head) const {
    const std::int64_t* const first = first_page.data() + sequence;
    const std::int64_t count = first[1] - first[0];
    return std::span(pages).subspan(
        static_cast<std::size_t>(first[0] * tables + (tables == 1 ? 0 : head) * count),
        static_cast<std::size_t>(count));
  }
};

/// From a table (sequences, pages of the longest), or one of each key/value head, (heads, sequences, pages),
/// and lengths (sequences,), any integer dtypes. Throws Error{input} with request and slot, and head: a page
/// that the cache lacks, a length that is negative or more than the table's pages hold, tables of other heads.
PagedSequences read_block_table(const ArraySource& table, const ArraySource& lengths, CacheSize cache);

/// The same from flashinfer's form: sequence i has the pages indices[indptr[i] : indptr[i + 1]], the last of
/// which holds last_page_len[i] tokens.
PagedSequences read_page_indices(const ArraySource& indptr, const ArraySource& indices,
                                 const ArraySource& last_page_len, CacheSize cache);

/// The same sequences as a faulty kernel may read them, of other lengths: `length` of their own. One for which
/// the table has no valid page keeps its length; all do where the sum exceeds 64 bits. `table`: that of
/// read_block_table(); null: no further pages.
PagedSequences with_lengths(const PagedSequences& of, const ArraySource* table,
                            const std::function<std::int64_t(std::int64_t keys)>& length);
/// The same with other last pages, by sequence; −1: its own.
PagedSequences with_last_pages(PagedSequences of, const std::vector<std::int64_t>& last);

/// The tokens of all sequences, (tokens, heads, size), of the cache's dtype. Throws Error{input} for a cache of
/// another size than the sequences'.
std::shared_ptr<const ArraySource> paged_tokens(const std::shared_ptr<const ArraySource>& cache,
                                                CacheLayout layout,
                                                std::shared_ptr<const PagedSequences> sequences);

}  // namespace ejk
