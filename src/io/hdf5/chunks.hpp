// Chunks of a dataset: the index is checked against the file, chunks are decoded by several threads, the
// last row of chunks is cached. Cost: one look-up and read per chunk; without memory for a row, per chunk
// and box.
// tests: tests/io/test_hdf5.cpp
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "ejk/array.hpp"
#include "io/hdf5/filters.hpp"
#include "io/hdf5/library.hpp"
#include "io/helpers.hpp"

namespace ejk::io {

/// A first-in, first-out cache: reading in C order reuses a row of chunks before the next one.
class ChunkCache {
 public:
  ChunkCache() = default;
  explicit ChunkCache(std::int64_t most) : most_(static_cast<std::size_t>(most)) {}

  void enlarge(std::int64_t most) { most_ = std::max(most_, static_cast<std::size_t>(most)); }
  const Bytes* find(std::int64_t chunk) const {
    const auto at = cached_.find(chunk);
    return at == cached_.end() ? nullptr : &at->second;
  }
  /// Memory for a chunk while `others` are in flight: that of the oldest one if there would be too many.
  Bytes buffer(std::size_t others) {
    Bytes bytes;
    if (order_.empty() || cached_.size() + others < most_) return bytes;
    const auto oldest = cached_.find(order_.front());
    bytes = std::move(oldest->second);
    cached_.erase(oldest);
    order_.pop_front();
    return bytes;
  }
  const Bytes& put(std::int64_t chunk, Bytes&& bytes) {
    // Each in `order_` is in `cached_`, even where memory ends between the two.
    const Bytes& kept = cached_.emplace(chunk, std::move(bytes)).first->second;
    order_.push_back(chunk);
    return kept;
  }

 private:
  std::size_t most_ = 1;
  std::unordered_map<std::int64_t, Bytes> cached_;
  std::deque<std::int64_t> order_;
};

class Hdf5Chunks {
 public:
  struct Place {
    Hdf5Errors errors;
    std::string path;
    std::int64_t file_bytes = 0, stored = 0;
  };

  /// Reads the index. Throws Error{input} for chunks that cannot be its own, or claim more than the file can
  /// hold.
  Hdf5Chunks(Place place, hid_t id, hid_t plist, const Shape& shape, DType dtype);

  /// False: only the library decodes its filters.
  bool decoded_here() const { return decoded_here_; }
  std::int64_t chunk_bytes() const { return chunk_bytes_; }
  /// The cache: one row of chunks, at most 64 MiB.
  std::int64_t cache_bytes() const;
  /// The bytes of such a row; 0 where only the library decodes.
  std::int64_t row_bytes() const { return decoded_here_ ? row_bytes_ : 0; }
  void hold_row() { cache_.enlarge(row_bytes_ / chunk_bytes_); }
  /// Further memory for reading with `helpers` more threads.
  std::int64_t working_bytes(int helpers) const;
  bool is_unwritten() const { return entries_ == 0 && place_.stored == 0; }
  /// ", 5 of 6 written" where some never were.
  std::string written() const;

  /// The dataset as reopened (without a cache if chunks are decoded here) and its type. `fill`: the element
  /// of unwritten chunks; empty if only the library knows it. `helpers` must outlive this.
  void use(hid_t id, hid_t type, std::string fill, HelperThreads& helpers);
  void read(const Shape& start, const Shape& count, std::byte* out);

 private:
  struct Part;
  class Decoding;

  Error damaged_index(std::string_view how) const;
  Error damaged_chunk(const Shape& at, std::string_view how) const;
  bool tells_places(hid_t space) const;
  void list_chunks(hid_t space, bool unfiltered);
  bool is_in_index(const Shape& at, hsize_t* stored = nullptr) const;
  void check_absence(const Shape& at);
  void prepare_decoding(hid_t plist, const std::vector<Hdf5FilterEntry>& entries);
  template <class F>
  void for_each_part(const Shape& start, const Shape& count, F&& f) const;
  std::int64_t decoded_at_once(int helpers) const;
  std::uint32_t read_stored(const Shape& at, std::uint64_t stored, Bytes& bytes);
  void decode(const Shape& at, std::uint32_t left_out, Bytes& bytes);
  void copy_chunk(const Shape& at, Bytes& bytes);

  Place place_;
  hid_t id_, type_ = H5I_INVALID_HID;
  Shape shape_, chunk_;
  DType dtype_;
  std::int64_t chunk_bytes_ = 0, row_bytes_ = 0;
  bool decoded_here_ = false;
  std::vector<Filter> filters_;
  bool edges_unfiltered_ = false;  // chunks that reach over an edge are stored without filters
  // The chunks that the index has, the places where one can be, and whether each is known to have its own.
  std::int64_t entries_ = 0, places_ = 0;
  bool index_checked_ = false;
  ChunkCache cache_;
  std::string fill_;
  HelperThreads* helpers_ = nullptr;
  struct Spares {
    std::mutex mutex;
    std::vector<Bytes> unused;
  };
  std::unique_ptr<Spares> spares_ = std::make_unique<Spares>();
};

}  // namespace ejk::io
