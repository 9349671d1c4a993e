// Keys and values that a kernel may have read in place of the arguments', head by head: a head is read when a
// model first needs it, and kept.
// tests: tests/verdict/attention/test_pages.cpp
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "attention/problem.hpp"
#include "ejk/attention.hpp"
#include "ejk/attention_check.hpp"

namespace ejk::attn {

class OtherKeys {
 public:
  explicit OtherKeys(TriedKeys of) : of_(std::move(of)) {}

  std::int64_t length(std::int64_t entry) const { return begin(entry + 1) - begin(entry); }
  /// The problem with these keys and values of a head.
  Problem taken_by(Problem p, std::int64_t kv_head) const {
    const Head& head = head_of(p.entry, kv_head);
    p.k = rows_of(head.k);
    p.v = rows_of(head.v);
    p.bias.alibi.shift += length(p.entry) - p.kv_length;
    p.kv_length = length(p.entry);
    return p;
  }

 private:
  struct Head {
    Array k, v;  // (keys, size)
  };
  std::int64_t begin(std::int64_t entry) const { return of_.cu_seqlens[static_cast<std::size_t>(entry)]; }
  const Head& head_of(std::int64_t entry, std::int64_t kv_head) const {
    const std::scoped_lock lock(mutex_);
    const auto [at, is_new] = heads_.try_emplace({entry, kv_head});
    if (is_new) at->second = {read(*of_.k, entry, kv_head), read(*of_.v, entry, kv_head)};
    return at->second;
  }
  Array read(const ArraySource& from, std::int64_t entry, std::int64_t kv_head) const {
    const std::int64_t size = from.shape()[2];
    Array rows(from.dtype(), {length(entry), size});
    if (rows.size() > 0)
      from.read(Shape{begin(entry), kv_head, 0}, Shape{length(entry), 1, size}, rows.data());
    return rows;
  }
  static kernels::StridedMatrix rows_of(const Array& rows) {
    const std::int64_t element = size_of(rows.dtype());
    return {rows.data(), rows.dtype(), rows.shape()[1] * element, element};
  }

  TriedKeys of_;
  mutable std::mutex mutex_;
  mutable std::map<std::pair<std::int64_t, std::int64_t>, Head> heads_;
};

}  // namespace ejk::attn
