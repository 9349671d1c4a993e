// Paged caches of attention on the command line.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ejk/attention.hpp"
#include "ejk/attention_check.hpp"
#include "ejk/paged.hpp"
#include "job.hpp"
#include "options.hpp"
#include "sources.hpp"

namespace ejk::app {

/// References to the tables of a paged cache; empty: keys and values are not paged.
struct PagedFlags {
  enum class Layout { nhd, hnd, jax };
  friend std::string_view name_of(Layout of) {
    return of == Layout::nhd ? "nhd" : of == Layout::hnd ? "hnd" : "jax";
  }
  std::string block_table, seq_lens, indptr, indices, last_page_len;
  std::optional<Layout> layout;

  bool has_table() const { return !block_table.empty() || !seq_lens.empty(); }
  bool has_indices() const { return !indptr.empty() || !indices.empty() || !last_page_len.empty(); }
  bool any() const { return has_table() || has_indices(); }
  bool are_combined() const { return layout == Layout::jax; }
};

void declare_paged(OptionSet& set, PagedFlags& words);

/// Throws Error{usage} for tables without each other. `has_values`: V is given, or made of columns of K.
void check_paged(const PagedFlags& words, bool has_values);

struct OpenedPages {
  std::shared_ptr<const PagedSequences> sequences;
  std::shared_ptr<const ArraySource> table;  // null where pages are given by indptr
  std::shared_ptr<const ArraySource> k, v;   // caches
  CacheLayout layout = CacheLayout::nhd;
};

/// Replaces caches by the tokens of their pages, and gives sequences their lengths.
OpenedPages open_paged(const PagedFlags& words, const BufferedInput& q, BufferedInput& k,
                       std::optional<BufferedInput>& v, AttentionSettings& settings, Job& job);

/// What a kernel attends to that takes sequences for shorter or longer, by a page or by its part, leaves out
/// their last pages, or reads others: for --explain. `usual`: the mask is the one that paged caches have if none
/// is given.
Tried page_faults(const OpenedPages& pages, const std::vector<HeadMasks>& masks, bool usual);

}  // namespace ejk::app
