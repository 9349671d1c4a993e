// Packing of sequences into rows by best-fit decreasing. Rows of equal free capacity are one bucket, ordered
// by capacity; equal lengths are placed together, as many in a row as fit. Finding a bucket is O(log rows).
// tests: tests/sequence/test_bin_pack.cpp
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "core/checked.hpp"
#include "core/offsets.hpp"
#include "core/require.hpp"
#include "ejk/pack.hpp"

namespace ejk {

namespace {

// Pieces, by cutting what is longer than a row.
void cut_pieces(BinPacking& packing, const std::vector<std::int64_t>& lens, const std::string& name,
                LongSequence how, std::int64_t max_pieces) {
  const auto too_many = [&](std::int64_t sequence) {
    return core::invalid("{}: the sum of the lengths passes 63 bits at index {}", name, sequence);
  };
  const auto add = [&](std::int64_t sequence, std::int64_t start, std::int64_t length) {
    if (max_pieces > 0 && static_cast<std::int64_t>(packing.length.size()) == max_pieces)
      throw Error(Error::Kind::budget,
                  fmt::format("{}: sequence {} makes it more than {} pieces, for which there is no memory",
                              name, sequence, max_pieces));
    packing.sequence.push_back(sequence);
    packing.start.push_back(start);
    packing.length.push_back(length);
    const auto sum = core::checked_add(packing.tokens, length);
    if (!sum) throw too_many(sequence);
    packing.tokens = *sum;
  };
  for (std::size_t i = 0; i < lens.size(); ++i) {
    const auto sequence = static_cast<std::int64_t>(i);
    if (lens[i] < 0) throw core::invalid("{}: lens[{}] is {}, negative", name, i, lens[i]);
    if (lens[i] <= packing.capacity) {
      add(sequence, 0, lens[i]);
      continue;
    }
    ++packing.long_sequences;
    if (how == LongSequence::error)
      throw Error(Error::Kind::input,
                  fmt::format("{}: lens[{}] is {}, more than the {} tokens of a row", name, i, lens[i],
                              packing.capacity),
                  Error::Code::exceeds_row);
    if (how == LongSequence::truncate) {
      add(sequence, 0, packing.capacity);
      const auto sum = core::checked_add(packing.truncated_tokens, lens[i] - packing.capacity);
      if (!sum) throw too_many(sequence);
      packing.truncated_tokens = *sum;
    } else {
      std::int64_t left = lens[i];
      for (; left > packing.capacity; left -= packing.capacity)
        add(sequence, lens[i] - left, packing.capacity);
      add(sequence, lens[i] - left, left);
    }
  }
}

}  // namespace

std::int64_t BinPacking::lower_bound() const { return capacity > 0 ? core::ceil_div(tokens, capacity) : 0; }

double BinPacking::efficiency() const {
  return rows == 0
             ? 1.0
             : static_cast<double>(tokens) / (static_cast<double>(rows) * static_cast<double>(capacity));
}

BinPacking bin_pack(const IntegerArray& lens, std::int64_t capacity, LongSequence how,
                    std::int64_t max_pieces) {
  if (capacity < 1) throw core::invalid("the capacity is {}; it must be at least 1", capacity);
  BinPacking packing;
  packing.capacity = capacity;
  cut_pieces(packing, core::read_integers(lens, "lens"), lens->name(), how, max_pieces);

  const std::size_t pieces = packing.length.size();
  packing.row.resize(pieces);
  packing.offset.resize(pieces);
  std::vector<std::size_t> order(pieces);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return packing.length[a] != packing.length[b] ? packing.length[a] > packing.length[b] : a < b;
  });

  std::map<std::int64_t, std::vector<std::int64_t>> rows_by_capacity;
  for (std::size_t next = 0; next < pieces;) {
    const std::int64_t length = packing.length[order[next]];
    auto bucket = rows_by_capacity.lower_bound(length);
    if (bucket == rows_by_capacity.end())
      bucket = rows_by_capacity.try_emplace(capacity, std::vector{packing.rows++}).first;
    const std::int64_t row = bucket->second.back();
    std::int64_t space = bucket->first;
    bucket->second.pop_back();
    if (bucket->second.empty()) rows_by_capacity.erase(bucket);
    for (; next < pieces && packing.length[order[next]] == length && space >= length; ++next) {
      packing.row[order[next]] = row;
      packing.offset[order[next]] = capacity - space;
      space -= length;
    }
    rows_by_capacity[space].push_back(row);
  }
  return packing;
}

// Lengths, pieces, their order, rows with room.
std::int64_t bin_pack_bytes(std::int64_t pieces) {
  return core::bytes_of_estimate(12 * 8 * static_cast<double>(pieces));
}

}  // namespace ejk
