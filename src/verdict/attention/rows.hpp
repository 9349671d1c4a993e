// Enumeration of result rows, of queries, keys or a bias, and the array indices of their elements.
// tests: tests/verdict/attention/test_check.cpp
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <tuple>
#include <vector>

#include "attention/numbers.hpp"
#include "attention/problem.hpp"

namespace ejk::attn {

struct Place {
  std::int64_t entry = 0, head = 0, row = 0;  // row: within the entry
  bool operator<(const Place& o) const {
    return std::tie(entry, head, row) < std::tie(o.entry, o.head, o.row);
  }
};

class Rows {
 public:
  Rows(const CheckedArguments& setup, RowsOf of) : setup_(setup), of_(of) {
    for (std::int64_t e = 0; e < entries(); ++e) first_.push_back(first_.back() + heads() * length(e));
  }
  std::int64_t count() const { return first_.back(); }
  std::int64_t entries() const {
    return of_ == RowsOf::bias    ? setup_.bias_shape[0]
           : of_ == RowsOf::sinks ? std::int64_t{setup_.has_sinks()}
                                  : setup_.shape.entries;
  }
  std::int64_t heads() const {
    return of_ == RowsOf::keys   ? setup_.shape.kv_heads
           : of_ == RowsOf::bias ? setup_.bias_shape[1]
                                 : setup_.shape.heads;
  }
  std::int64_t length(std::int64_t e) const {
    return of_ == RowsOf::queries ? setup_.q_length(e)
           : of_ == RowsOf::keys  ? setup_.kv_length(e)
           : of_ == RowsOf::bias  ? setup_.bias_shape[2]
                                  : 1;
  }
  const std::vector<std::int64_t>& offsets() const {
    return of_ == RowsOf::queries ? setup_.q_offsets : setup_.kv_offsets;
  }

  Place at(std::int64_t n) const {
    const auto after = std::upper_bound(first_.begin(), first_.end(), n);
    const std::int64_t entry = after - first_.begin() - 1, in_entry = n - after[-1], rows = length(entry);
    return {entry, in_entry / rows, in_entry % rows};
  }
  std::int64_t row_of(const Place& place) const {
    return first_[static_cast<std::size_t>(place.entry)] + place.head * length(place.entry) + place.row;
  }
  /// Of a place: its batch entry and key head, entry by entry. A bias has its own.
  std::size_t part_of(const Place& place) const {
    const bool of_queries = of_ == RowsOf::queries || of_ == RowsOf::sinks;
    const std::int64_t head = of_queries ? place.head / setup_.group() : place.head;
    return static_cast<std::size_t>(place.entry * setup_.shape.kv_heads + head);
  }
  std::int64_t position(const Place& place) const {
    return place.row +
           (setup_.packed() && of_ != RowsOf::sinks ? offsets()[static_cast<std::size_t>(place.entry)] : 0);
  }

  Shape index_of(const Place& place, std::int64_t element) const {
    if (of_ == RowsOf::sinks) return {place.head};
    const std::int64_t p = position(place);
    if (of_ == RowsOf::bias) {
      const Shape all{place.entry, place.head, p, element};
      return {all.end() - static_cast<std::ptrdiff_t>(setup_.bias_rank), all.end()};
    }
    if (setup_.packed()) return {p, place.head, element};
    if (setup_.layout == AttentionLayout::bshd) return {place.entry, p, place.head, element};
    return {place.entry, place.head, p, element};
  }
  Shape index_in_lse(const Place& place) const {
    const std::int64_t p = position(place);
    return setup_.packed() ? Shape{place.head, p} : Shape{place.entry, place.head, p};
  }

 private:
  const CheckedArguments& setup_;
  RowsOf of_;
  std::vector<std::int64_t> first_{0};
};

inline double load_lse(const ArrayView& lse, const Shape& index) {
  const std::byte* from = lse.data;
  for (std::size_t d = 0; d < index.size(); ++d) from += index[d] * lse.strides[d];
  double value = 0;
  load(lse.dtype, from, 0, 1, &value);
  return value;
}

inline double most_finite(const std::vector<double>& values) {
  double all = 0;
  for (const double value : values)
    if (std::isfinite(value)) all = std::max(all, std::abs(value));
  return all;
}

}  // namespace ejk::attn
