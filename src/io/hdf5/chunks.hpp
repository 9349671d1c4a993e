// Chunks of a dataset. The chunk index is checked against the file, chunks are decoded here by several
// threads, and the last row of chunks is cached. Reading costs one look-up and one read per chunk; without
// memory for a row, per chunk and piece that is read of it.
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

/// The chunks that were read last, those that went in first leaving first: reading in C order comes back to a
/// row of chunks before it goes on to the next one.
class ChunkCache {
 public:
  ChunkCache() = default;
  explicit ChunkCache(std::int64_t most) : most_(static_cast<std::size_t>(most)) {}

  void enlarge(std::int64_t most) { most_ = std::max(most_, static_cast<std::size_t>(most)); }
  const Bytes* find(std::int64_t chunk) const {
    const auto at = held_.find(chunk);
    return at == held_.end() ? nullptr : &at->second;
  }
  /// Memory for a chunk that will be put in while `others` are on their way: that of the oldest one, which
  /// leaves, where with those there would be too many.
  Bytes room(std::size_t others) {
    Bytes bytes;
    if (order_.empty() || held_.size() + others < most_) return bytes;
    const auto oldest = held_.find(order_.front());
    bytes = std::move(oldest->second);
    held_.erase(oldest);
    order_.pop_front();
    return bytes;
  }
  /// A chunk that is not here; `room` was made for it.
  const Bytes& put(std::int64_t chunk, Bytes&& bytes) {
    // Each in `order_` is in `held_`, even where memory ends between the two.
    const Bytes& kept = held_.emplace(chunk, std::move(bytes)).first->second;
    order_.push_back(chunk);
    return kept;
  }

 private:
  std::size_t most_ = 1;
  std::unordered_map<std::int64_t, Bytes> held_;
  std::deque<std::int64_t> order_;
};

class Hdf5Chunks {
 public:
  /// What messages say, and what the file holds: its length and the dataset's stored bytes.
  struct Place {
    Hdf5Errors errors;
    std::string path;
    std::int64_t file_bytes = 0, stored = 0;
  };

  /// Looks at the chunks of an open dataset with these creation properties. Throws Error{input} for chunks
  /// that cannot be its own, or that claim more than the file can hold.
  Hdf5Chunks(Place place, hid_t id, hid_t plist, const Shape& shape, DType dtype);

  /// Whether `read` can be used: otherwise only the library undoes the filters.
  bool decoded_here() const { return decoded_here_; }
  std::int64_t chunk_bytes() const { return chunk_bytes_; }
  /// What is held of chunks: one row of them, which reading in C order comes back to, or 64 MiB of it.
  std::int64_t cache_bytes() const;
  /// The bytes of such a row; 0 where only the library decodes.
  std::int64_t row_bytes() const { return decoded_here_ ? row_bytes_ : 0; }
  /// Holds it whole.
  void hold_row() { cache_.enlarge(row_bytes_ / chunk_bytes_); }
  /// What reading takes of memory beside that, with so many threads beside this one.
  std::int64_t working_bytes(int helpers) const;
  /// None of them was ever written.
  bool is_unwritten() const { return entries_ == 0 && place_.stored == 0; }
  /// ", 5 of 6 written" where some never were.
  std::string written() const;

  /// The dataset has been opened anew (without a cache where chunks are decoded here), with that type.
  /// `fill` is the element that unwritten places have; empty where only the library knows. `helpers`, which
  /// outlive it, decode chunks as well.
  void use(hid_t id, hid_t type, std::string fill, HelperThreads& helpers);
  /// A box of the dataset, as the elements are in the file.
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
  // Workspaces of those that decode.
  struct Spares {
    std::mutex mutex;
    std::vector<Bytes> unused;
  };
  std::unique_ptr<Spares> spares_ = std::make_unique<Spares>();
};

}  // namespace ejk::io
