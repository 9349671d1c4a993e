// Integer arrays as 64-bit integers, in chunks or row by row.
// tests: tests/check/test_sequences.cpp
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/axis.hpp"
#include "core/checked.hpp"
#include "core/offsets.hpp"
#include "core/parallel.hpp"
#include "core/pieces.hpp"
#include "core/progress.hpp"
#include "core/require.hpp"
#include "ejk/check.hpp"

namespace ejk::check {

/// Elements of a chunk, which fits the cache as 64-bit integers.
inline constexpr std::int64_t kPiece = std::int64_t{1} << 15;

inline std::string one_of(const ArraySource& source) {
  return fmt::format("take one row with a slice: \"{}[0]\"", source.name());
}

/// Adds a finding with a message, or one that message() builds if it is kept.
template <class Message>
void add(Findings& found, std::string_view rule, std::int64_t place, const char* array, const Shape& index,
         const ReportValue& value, Message&& message) {
  found.add(rule, place, [&] {
    if constexpr (std::is_invocable_v<Message>)
      return Finding{array, index, value, message()};
    else
      return Finding{array, index, value, message};
  });
}

/// The same for element `at`, in C order, of an array of this shape.
template <class Message>
void add_at(Findings& found, std::string_view rule, const char* array, const Shape& shape, std::int64_t at,
            std::int64_t value, Message&& message) {
  found.add(rule, at, [&] { return Finding{array, core::index_of(shape, at), value, message()}; });
}

/// Throws Error{input} unless it is of integers and of a rank from `least` to `most`. `form` is the shape in
/// messages: "(batch, pages)".
inline void require_integers(const ArraySource& source, const char* what, std::size_t least, std::size_t most,
                             const char* form) {
  if (!is_integer(source.dtype()))
    throw std::move(Error(Error::Kind::input,
                          fmt::format("{} must be integers, not {}", what, name_of(source.dtype())),
                          is_float(source.dtype()) ? Error::Code::not_integers : Error::Code::other)
                        .at(source.name()));
  const std::size_t rank = source.shape().size();
  if (rank >= least && rank <= most) return;
  Error error(Error::Kind::input,
              fmt::format("{} must be {}, not of shape {}", what, form, to_string(source.shape())));
  if (rank > most && rank - most == 1) error.hint(one_of(source));
  throw std::move(error.at(source.name()));
}

/// Throws Error{input} unless it is (tokens,), or its other axes have length 1.
inline void require_one_row(const ArraySource& source, const char* what) {
  if (element_count(source.shape()) != source.shape().back())
    throw std::move(
        core::invalid("cu_seqlens are of one row, and {} are of shape {}", what, to_string(source.shape()))
            .at(source.name())
            .hint(one_of(source)));
}

inline void require_claim(const char* what, std::int64_t value, std::int64_t least) {
  if (value < least) throw core::usage("{} is {}; it must be at least {}", what, value, least);
}

inline std::string there_are(std::int64_t count, const char* what) {
  return count == 1 ? fmt::format("there is 1 {}", what) : fmt::format("there are {} {}s", count, what);
}

inline std::string less_than(std::int64_t before, std::int64_t value) {
  return fmt::format("less than {} before it{}", before, before > 0 && value < 0 ? ": an overflow?" : "");
}

struct Buffer {
  std::vector<std::byte> raw;
  std::vector<std::int64_t> values;
};

/// Elements begin … end − 1 in C order of an array of rank 1 or more. Throws Error{input} above 63 bits.
inline std::span<const std::int64_t> read_range(const ArraySource& source, std::int64_t begin,
                                                std::int64_t end, Buffer& buffer) {
  buffer.values.resize(static_cast<std::size_t>(end - begin));
  std::int64_t* at = buffer.values.data();
  core::for_each_box(source.shape(), begin, end, [&](const Shape& start, const Shape& count) {
    core::read_integer_box(source, start, count, buffer.raw, at);
    at += element_count(count);
  });
  return buffer.values;
}

inline std::vector<std::int64_t> read_all_of(const ArraySource& source) {
  Buffer buffer;
  if (source.shape().empty())
    read_range(*make_source(read_all(source).reshaped({1})), 0, 1, buffer);
  else
    read_range(source, 0, element_count(source.shape()), buffer);
  return std::move(buffer.values);
}

/// Calls f(values, first) for consecutive chunks in C order: `first` is the flat index of values[0].
template <class F>
void scan(const ArraySource& source, const CheckOptions& options, F&& f) {
  const std::int64_t n = element_count(source.shape());
  Buffer buffer;
  for (std::int64_t begin = 0; begin < n; begin += kPiece) {
    const std::int64_t end = std::min(n, begin + kPiece);
    f(read_range(source, begin, end, buffer), begin);
    if (options.progress) options.progress(end, n);
  }
}

/// Calls f(at, id, before, s) for each id of one row, in order: s is the token's sequence of cu_seqlens, or
/// their number after the last one; `before` is the previous id, 0 at first. Fewer ids (`what`) than tokens
/// are a finding of the rule "length".
template <class F>
void scan_sequences(const ArraySource& source, const std::vector<std::int64_t>& cu,
                    const CheckOptions& options, Findings& found, const char* what, F&& f) {
  const std::size_t sequences = cu.size() - 1;
  std::size_t s = 0;
  std::int64_t before = 0;
  scan(source, options, [&](std::span<const std::int64_t> ids, std::int64_t first) {
    for (std::size_t k = 0; k < ids.size(); ++k) {
      const std::int64_t at = first + static_cast<std::int64_t>(k);
      while (s < sequences && cu[s + 1] <= at) ++s;
      f(at, ids[k], before, s);
      before = ids[k];
    }
  });
  const std::int64_t tokens = element_count(source.shape());
  if (tokens < cu.back())
    add(found, "length", 0, "cu_seqlens", {static_cast<std::int64_t>(sequences)}, cu.back(),
        fmt::format("there are {} {}", tokens, what));
}

/// Calls work(part, row, values) for rows of `columns` elements in any order, on several threads with a part
/// make() each, then join(part) for each part in any order. `each`: nanoseconds of an element.
template <class Make, class Work, class Join>
void scan_rows(const ArraySource& source, std::int64_t columns, const CheckOptions& options, double each,
               Make&& make, Work&& work, Join&& join) {
  const std::int64_t n = element_count(source.shape());
  if (n == 0) return;
  const std::int64_t rows = n / columns;
  const std::int64_t step = std::max<std::int64_t>(1, kPiece / columns);  // rows of a piece
  const std::int64_t pieces = core::ceil_div(rows, step);
  const int threads = source.random_access() ? core::threads_for(pieces, each * static_cast<double>(n)) : 1;
  core::Progress progress(options.progress, n);
  using Part = decltype(make());
  core::parallel_reduce(
      pieces, threads, [&] { return std::pair<Part, Buffer>(make(), {}); },
      [&](std::pair<Part, Buffer>& part, std::int64_t piece) {
        const std::int64_t first = piece * step, end = std::min(rows, first + step);
        const auto values = read_range(source, first * columns, end * columns, part.second);
        for (std::int64_t row = first; row < end; ++row)
          work(part.first, row,
               values.subspan(static_cast<std::size_t>((row - first) * columns),
                              static_cast<std::size_t>(columns)));
        progress.add((end - first) * columns);
      },
      [&](std::pair<Part, Buffer>& part) { join(part.first); });
}

/// A set of integers of bounded size: a hash table with generations, so begin() clears it in O(1).
class IndexSet {
 public:
  explicit IndexSet(std::int64_t most) {
    std::size_t places = 16;
    while (static_cast<std::int64_t>(places) < 2 * most) places *= 2, --shift_;
    entries_.resize(places);
  }

  void begin() { ++now_; }

  /// False if it is in the set already.
  bool insert(std::int64_t value) {
    const std::size_t last = entries_.size() - 1;
    std::size_t at = (static_cast<std::uint64_t>(value) * 0x9E3779B97F4A7C15u) >> shift_;
    for (; entries_[at].when == now_; at = (at + 1) & last)
      if (entries_[at].value == value) return false;
    entries_[at] = {value, now_};
    return true;
  }

 private:
  struct Entry {
    std::int64_t value = 0;
    std::int64_t when = 0;
  };
  std::vector<Entry> entries_;
  int shift_ = 60;  // 64 − log2 of the table size
  std::int64_t now_ = 0;
};

}  // namespace ejk::check
