// Reading of chunked datasets: a box is assembled from the chunks that it intersects. A short index is
// checked when the dataset is opened, a long one when a chunk is missing. One thread calls the library and
// reads chunks; others decode them concurrently.
// tests: tests/io/test_hdf5.cpp
#include "io/hdf5/chunks.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/checked.hpp"
#include "core/elements.hpp"
#include "core/parallel.hpp"
#include "core/pieces.hpp"
#include "ejk/program/text.hpp"

namespace ejk::io {

namespace {

// Limits on what a file may claim.
constexpr std::int64_t kMaxChunkBytes = std::int64_t{1} << 30;  // a chunk is held whole, some times over
constexpr std::int64_t kMaxDeflateRatio = 1032;                 // deflate's best: 258 bytes for two bits
constexpr std::int64_t kMaxChunkCache = std::int64_t{64} << 20;

// Longer indices are not scanned on opening (finding the n-th entry takes n steps); the entries of those
// over at most kMost positions are counted when one is empty.
constexpr std::int64_t kMaxListed = 200, kMaxCounted = std::int64_t{1} << 18;

// Bytes and number of chunks decoded at once; a thread is woken for a few, about half a millisecond.
constexpr std::int64_t kMaxDecoding = std::int64_t{64} << 20, kMaxDecodingChunks = 4096,
                       kTaskBytes = std::int64_t{1} << 18;

// A box of that extent from one array to another, whose strides are given in bytes.
void copy_box(const std::byte* from, std::span<const std::int64_t> from_strides, std::byte* to,
              std::span<const std::int64_t> to_strides, std::span<const std::int64_t> extent) {
  if (extent.size() == 1) {
    std::memcpy(to, from, static_cast<std::size_t>(extent[0] * from_strides[0]));
    return;
  }
  for (std::int64_t i = 0; i < extent[0]; ++i)
    copy_box(from + i * from_strides[0], from_strides.subspan(1), to + i * to_strides[0],
             to_strides.subspan(1), extent.subspan(1));
}

// The same element in every place of a box.
void fill_box(std::string_view element, std::byte* to, std::span<const std::int64_t> strides,
              std::span<const std::int64_t> extent) {
  if (extent.size() > 1) {
    for (std::int64_t i = 0; i < extent[0]; ++i)
      fill_box(element, to + i * strides[0], strides.subspan(1), extent.subspan(1));
    return;
  }
  core::repeat_element(std::as_bytes(std::span(element)), extent[0], to);
}

}  // namespace

Hdf5Chunks::Hdf5Chunks(Place place, hid_t id, hid_t plist, const Shape& shape, DType dtype)
    : place_(std::move(place)), id_(id), shape_(shape), dtype_(dtype) {
  std::vector<hsize_t> lengths(shape_.size());
  const int rank = H5Pget_chunk(plist, static_cast<int>(lengths.size()), lengths.data());
  if (rank != static_cast<int>(shape_.size()))
    throw place_.errors.error(place_.path, "its chunks have another rank than the dataset");
  for (const hsize_t length : lengths)
    chunk_.push_back(static_cast<std::int64_t>(std::min<hsize_t>(length, INT64_MAX)));
  if (element_count(chunk_) == 0) throw place_.errors.error(place_.path, "its chunks are empty");
  chunk_bytes_ = byte_count(chunk_, dtype_);
  if (chunk_bytes_ > kMaxChunkBytes)
    throw place_.errors.error(place_.path,
                              fmt::format("its chunks are {} each, more than the {} that are read",
                                          format_bytes(chunk_bytes_), format_bytes(kMaxChunkBytes)));
  row_bytes_ = chunk_bytes_;
  for (std::size_t d = 1; d < shape_.size(); ++d)
    row_bytes_ = core::checked_mul(row_bytes_, core::ceil_div(shape_[d], chunk_[d])).value_or(INT64_MAX);
  row_bytes_ = std::max(row_bytes_, chunk_bytes_);

  const Hdf5Handle space =
      place_.errors.checked(H5Dget_space(id_), H5Sclose, place_.path, "has an unreadable shape");
  hsize_t chunks = 0;
  if (H5Dget_num_chunks(id_, space.id(), &chunks) < 0)
    throw place_.errors.library_error(place_.path, "its chunks cannot be counted");
  entries_ = static_cast<std::int64_t>(std::min<hsize_t>(chunks, INT64_MAX));
  places_ = 1;
  for (std::size_t d = 0; d < shape_.size(); ++d)
    places_ = core::checked_mul(places_, core::ceil_div(shape_[d], chunk_[d])).value_or(INT64_MAX);
  const std::int64_t claimed = core::checked_mul(entries_, chunk_bytes_).value_or(INT64_MAX);
  if (place_.stored > place_.file_bytes)
    throw place_.errors.claims_too_much(place_.path, place_.stored,
                                        fmt::format("the file of {} bytes cannot hold", place_.file_bytes));
  const std::vector<Hdf5FilterEntry> filters = hdf5_filters(plist);
  // Some kinds of index go through all places for each entry that they list.
  if (entries_ <= kMaxListed && places_ <= kMaxCounted) list_chunks(space.id(), filters.empty());
  if (entries_ > places_)
    throw damaged_index(fmt::format("it has {} chunks, and there are {}", entries_, places_));
  if (filters.empty() && place_.stored != claimed)
    throw place_.errors.error(place_.path, fmt::format("not all of its chunks have {} bytes", chunk_bytes_));
  prepare_decoding(plist, filters);
  if (decoded_here_ && claimed / kMaxDeflateRatio > place_.stored)
    throw place_.errors.claims_too_much(place_.path, claimed,
                                        fmt::format("its {} stored bytes cannot hold", place_.stored));
}

std::int64_t Hdf5Chunks::cache_bytes() const {
  return std::max(chunk_bytes_, std::min(kMaxChunkCache, row_bytes_));
}

std::string Hdf5Chunks::written() const {
  return entries_ < places_ ? fmt::format(", {} of {} written", entries_, places_) : "";
}

// Without helpers one after the other.
std::int64_t Hdf5Chunks::decoded_at_once(int helpers) const {
  return helpers == 0 ? 1 : std::clamp<std::int64_t>(kMaxDecoding / chunk_bytes_, 1, kMaxDecodingChunks);
}

std::int64_t Hdf5Chunks::working_bytes(int helpers) const {
  const std::int64_t chunks = decoded_here_ ? decoded_at_once(helpers) : 1;
  return (3 + chunks + std::min<std::int64_t>(helpers, chunks)) * chunk_bytes_;
}

void Hdf5Chunks::use(hid_t id, hid_t type, std::string fill, HelperThreads& helpers) {
  fill_ = std::move(fill);
  helpers_ = &helpers;
  id_ = id;
  type_ = type;
  cache_ = ChunkCache(cache_bytes() / chunk_bytes_);
}

Error Hdf5Chunks::damaged_index(std::string_view how) const {
  return place_.errors.error(place_.path, fmt::format("the index of its chunks is damaged: {}", how));
}

// libhdf5 1.10 permutes chunk coordinates if only one axis, not the first, is unlimited.
bool Hdf5Chunks::tells_places(hid_t space) const {
  std::vector<hsize_t> most(shape_.size());
  if (H5Sget_simple_extent_dims(space, nullptr, most.data()) < 0) return false;
  return most[0] == H5S_UNLIMITED || std::count(most.begin(), most.end(), H5S_UNLIMITED) != 1;
}

// Each entry must be a chunk of the dataset, at its position, with its bytes if unfiltered, sharing none.
void Hdf5Chunks::list_chunks(hid_t space, bool unfiltered) {
  const bool with_places = tells_places(space);
  struct Entry {
    Shape at;
    std::int64_t address = 0, bytes = 0;
  };
  std::vector<Entry> entries;
  std::vector<hsize_t> offset(chunk_.size());
  for (std::int64_t i = 0; i < entries_; ++i) {
    unsigned left_out = 0;
    haddr_t address = HADDR_UNDEF;
    hsize_t bytes = 0;
    if (H5Dget_chunk_info(id_, space, static_cast<hsize_t>(i), offset.data(), &left_out, &address, &bytes) <
        0)
      throw place_.errors.library_error(place_.path, "the index of its chunks cannot be read");
    const Shape at(offset.begin(), offset.end());
    for (std::size_t d = 0; with_places && d < at.size(); ++d)
      if (offset[d] >= static_cast<hsize_t>(shape_[d]) || at[d] % chunk_[d] != 0)
        throw damaged_index(fmt::format("it has one at ({}), where none can be", fmt::join(offset, ", ")));
    if (unfiltered && bytes != static_cast<hsize_t>(chunk_bytes_))
      throw damaged_chunk(at, fmt::format("has {} bytes, not its {}", bytes, chunk_bytes_));
    const auto file_bytes = static_cast<hsize_t>(place_.file_bytes);
    if (address > file_bytes || bytes > file_bytes - address)
      throw damaged_chunk(at, "lies outside of the file");
    if (with_places && !is_in_index(at))
      throw damaged_index(fmt::format("the chunk at {} is not found", to_string(at)));
    entries.push_back({at, static_cast<std::int64_t>(address), static_cast<std::int64_t>(bytes)});
  }
  const auto before = [](const Entry& a, const Entry& b) { return a.address < b.address; };
  std::sort(entries.begin(), entries.end(), before);
  const auto overlap = [](const Entry& a, const Entry& b) { return a.address + a.bytes > b.address; };
  const auto two = std::adjacent_find(entries.begin(), entries.end(), overlap);
  if (two != entries.end())
    throw damaged_index(
        fmt::format("the chunks at {} and {} share bytes", to_string(two[0].at), to_string(two[1].at)));
  if (!with_places) return;
  const auto less = [](const Entry& a, const Entry& b) { return a.at < b.at; };
  const auto same = [](const Entry& a, const Entry& b) { return a.at == b.at; };
  std::sort(entries.begin(), entries.end(), less);
  const auto twice = std::adjacent_find(entries.begin(), entries.end(), same);
  if (twice != entries.end())
    throw damaged_index(fmt::format("it has the chunk at {} twice", to_string(twice->at)));
  index_checked_ = true;
}

// Whether a chunk can be looked up. (Of one without filters the library says no length but the usual one.)
bool Hdf5Chunks::is_in_index(const Shape& at, hsize_t* stored) const {
  const std::vector<hsize_t> offset(at.begin(), at.end());
  hsize_t bytes = 0;
  bool found = H5Dget_chunk_storage_size(id_, offset.data(), &bytes) >= 0;
  if (found && bytes == 0) {  // later libraries say so of chunks that were never written
    unsigned left_out = 0;
    haddr_t address = HADDR_UNDEF;
    hsize_t length = 0;
    found = H5Dget_chunk_info_by_coord(id_, offset.data(), &left_out, &address, &length) >= 0 &&
            address != HADDR_UNDEF;
  }
  if (!found) H5Eclear2(H5E_DEFAULT);
  if (stored != nullptr) *stored = bytes;
  return found;
}

// The chunk is not in the index: never written, or the index is damaged and has more entries than chunks are
// found.
void Hdf5Chunks::check_absence(const Shape& at) {
  if (entries_ == places_) throw damaged_index(fmt::format("the chunk at {} is not found", to_string(at)));
  if (std::exchange(index_checked_, true) || places_ > kMaxCounted) return;
  Shape counts(at.size());
  for (std::size_t d = 0; d < at.size(); ++d) counts[d] = core::ceil_div(shape_[d], chunk_[d]);
  std::int64_t found = 0;
  Shape place(at.size());
  for (core::Pieces places(counts, 1); places.next();) {
    for (std::size_t d = 0; d < at.size(); ++d) place[d] = places.start()[d] * chunk_[d];
    if (is_in_index(place)) ++found;
  }
  if (found != entries_) throw damaged_index(fmt::format("of its {} chunks {} are found", entries_, found));
}

// The chunk whose first element has that index.
Error Hdf5Chunks::damaged_chunk(const Shape& at, std::string_view how) const {
  return place_.errors.error(place_.path, fmt::format("the chunk at {} {}", to_string(at), how));
}

// Fills in how chunks are decoded, where that is done here; otherwise the library does it.
void Hdf5Chunks::prepare_decoding(hid_t plist, const std::vector<Hdf5FilterEntry>& entries) {
  for (const Hdf5FilterEntry& entry : entries) {
    const auto kind = filter_kind(entry.id);
    if (!kind) return;
    Filter filter{*kind};
    if (filter.kind == Filter::Kind::shuffle) {
      if (entry.values.empty() || entry.values[0] == 0)
        throw place_.errors.error(place_.path, "its shuffle filter gives no size of elements");
      filter.element_bytes = entry.values[0];
    }
    filters_.push_back(filter);
  }
  const auto compresses = [](const Filter& f) { return is_compression(f.kind); };
  if (std::count_if(filters_.begin(), filters_.end(), compresses) > 1) return;
  decoded_here_ = true;
  unsigned options = 0;
  edges_unfiltered_ =
      H5Pget_chunk_opts(plist, &options) >= 0 && (options & H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS) != 0;
}

// A chunk's part of a box: where the chunk begins, and which bytes of it go where.
struct Hdf5Chunks::Part {
  std::int64_t chunk = 0;
  Shape at, extent;
  std::int64_t from = 0, to = 0;
};

// Chunks of a box in flight. The error is that of the first chunk, whichever thread decodes it.
class Hdf5Chunks::Decoding {
 public:
  Decoding(Hdf5Chunks& chunks, const Shape& count, std::byte* out)
      : chunks_(chunks),
        from_strides_(c_strides(chunks.chunk_, chunks.dtype_)),
        to_strides_(c_strides(count, chunks.dtype_)),
        out_(out),
        most_(static_cast<std::size_t>(chunks.decoded_at_once(chunks.helpers_->count()))) {}
  ~Decoding() { chunks_.helpers_->wait(); }
  Decoding(const Decoding&) = delete;
  Decoding& operator=(const Decoding&) = delete;

  void copy(const Bytes& bytes, const Part& part) const {
    copy_box(bytes.data() + part.from, from_strides_, out_ + part.to, to_strides_, part.extent);
  }
  void fill(std::string_view element, const Part& part) const {
    fill_box(element, out_ + part.to, to_strides_, part.extent);
  }
  // Reads the chunk, which has so many stored bytes, and lets it be decoded and copied.
  void add(const Part& part, std::uint64_t stored) {
    if (in_flight_.size() == most_) finish();
    Bytes buffer = chunks_.cache_.buffer(in_flight_.size());
    in_flight_.push_back({part, static_cast<std::int64_t>(in_flight_.size()), 0, std::move(buffer)});
    StoredChunk& chunk = in_flight_.back();
    chunk.left_out = chunks_.read_stored(part.at, stored, chunk.bytes);
    task_.push_back(&chunk);
    if (std::ssize(task_) * chunks_.chunk_bytes_ >= kTaskBytes) begin_task();
  }
  // Waits until all that were added are decoded, and keeps them. Throws what is wrong with one.
  void finish() {
    wait();
    for (StoredChunk& chunk : in_flight_) chunks_.cache_.put(chunk.part.chunk, std::move(chunk.bytes));
    in_flight_.clear();
  }
  // The same where it is known that something is wrong: perhaps with an earlier chunk.
  void wait() {
    begin_task();
    chunks_.helpers_->wait();
    error_.rethrow();
  }

 private:
  struct StoredChunk {
    Part part;
    std::int64_t order = 0;
    std::uint32_t left_out = 0;
    Bytes bytes;
  };

  void begin_task() {
    if (task_.empty()) return;
    chunks_.helpers_->add([this, task = std::exchange(task_, {})] {
      for (StoredChunk* chunk : task)
        error_.run(chunk->order, [&] {
          chunks_.decode(chunk->part.at, chunk->left_out, chunk->bytes);
          copy(chunk->bytes, chunk->part);
        });
    });
  }

  Hdf5Chunks& chunks_;
  const Shape from_strides_, to_strides_;
  std::byte* out_;
  std::size_t most_;
  std::deque<StoredChunk> in_flight_;
  std::vector<StoredChunk*> task_;  // read, not yet assigned to a decoder
  core::FirstError error_;
};

void Hdf5Chunks::read(const Shape& start, const Shape& count, std::byte* out) {
  Decoding decoding(*this, count, out);
  try {
    for_each_part(start, count, [&](const Part& part) {
      if (const Bytes* bytes = cache_.find(part.chunk)) return decoding.copy(*bytes, part);
      hsize_t stored = 0;
      const bool found = is_in_index(part.at, &stored);
      if (!found) check_absence(part.at);
      if (!found && !fill_.empty()) return decoding.fill(fill_, part);
      if (found && !filters_.empty()) return decoding.add(part, stored);
      Bytes bytes = cache_.buffer(0);
      copy_chunk(part.at, bytes);
      decoding.copy(cache_.put(part.chunk, std::move(bytes)), part);
    });
  } catch (...) {
    decoding.wait();
    throw;
  }
  decoding.finish();
}

// f(part) for each chunk that a box touches, in C order.
template <class F>
void Hdf5Chunks::for_each_part(const Shape& start, const Shape& count, F&& f) const {
  const Shape from_strides = c_strides(chunk_, dtype_), to_strides = c_strides(count, dtype_);
  const std::size_t rank = chunk_.size();
  Shape first(rank), chunks(rank);  // first and how many, in chunks
  for (std::size_t d = 0; d < rank; ++d) {
    first[d] = start[d] / chunk_[d];
    chunks[d] = count[d] == 0 ? 0 : (start[d] + count[d] - 1) / chunk_[d] - first[d] + 1;
  }
  Part part;
  part.at = part.extent = Shape(rank);
  for (core::Pieces pieces(chunks, 1); pieces.next();) {
    part.from = part.to = part.chunk = 0;
    for (std::size_t d = 0; d < rank; ++d) {
      part.at[d] = (first[d] + pieces.start()[d]) * chunk_[d];
      const std::int64_t low = std::max(part.at[d], start[d]);
      part.extent[d] = std::min(chunk_[d] - (low - part.at[d]), start[d] + count[d] - low);
      part.from += (low - part.at[d]) * from_strides[d];
      part.to += (low - start[d]) * to_strides[d];
      part.chunk = part.chunk * core::ceil_div(shape_[d], chunk_[d]) + part.at[d] / chunk_[d];
    }
    f(part);
  }
}

// The stored bytes of a chunk that the index has; returns the mask of skipped filters.
std::uint32_t Hdf5Chunks::read_stored(const Shape& at, std::uint64_t stored, Bytes& bytes) {
  const std::vector<hsize_t> offset(at.begin(), at.end());
  if (stored == 0) throw damaged_chunk(at, "has no bytes");
  // Deflate makes hardly more of what it cannot shorten; this is twice as much.
  constexpr hsize_t kSlack = 1 << 16;
  if (stored > 2 * static_cast<hsize_t>(chunk_bytes_) + kSlack)
    throw damaged_chunk(at, fmt::format("takes {} stored bytes for its {}", stored, chunk_bytes_));
  bytes.resize(stored);
  std::uint32_t left_out = 0;
  if (H5Dread_chunk(id_, H5P_DEFAULT, offset.data(), &left_out, bytes.data()) < 0)
    throw damaged_chunk(at, "cannot be read: " + hdf5_reason());
  bool whole = true;
  for (std::size_t d = 0; d < at.size(); ++d) whole = whole && at[d] <= shape_[d] - chunk_[d];
  return edges_unfiltered_ && !whole ? UINT32_MAX : left_out;
}

// What is stored becomes the chunk's elements. On any thread.
void Hdf5Chunks::decode(const Shape& at, std::uint32_t left_out, Bytes& bytes) {
  Bytes spare;
  {
    const std::scoped_lock lock(spares_->mutex);
    if (!spares_->unused.empty()) {
      spare = std::move(spares_->unused.back());
      spares_->unused.pop_back();
    }
  }
  try {
    undo_filters(filters_, left_out, chunk_bytes_, bytes, spare);
  } catch (const Error& e) {
    throw damaged_chunk(at, e.message());
  }
  const std::scoped_lock lock(spares_->mutex);
  spares_->unused.push_back(std::move(spare));
}

// A chunk without filters, or one that was never written and holds fill values.
void Hdf5Chunks::copy_chunk(const Shape& at, Bytes& bytes) {
  bytes.resize(static_cast<std::size_t>(chunk_bytes_));
  const std::size_t rank = at.size();
  const std::vector<hsize_t> from(at.begin(), at.end()), origin(rank), whole(chunk_.begin(), chunk_.end());
  std::vector<hsize_t> extent(whole);
  for (std::size_t d = 0; d < rank; ++d)
    extent[d] = std::min(whole[d], static_cast<hsize_t>(shape_[d] - at[d]));
  const Hdf5Handle in_file =
      place_.errors.checked(H5Dget_space(id_), H5Sclose, place_.path, "has an unreadable shape");
  const Hdf5Handle in_memory(H5Screate_simple(static_cast<int>(rank), whole.data(), nullptr), H5Sclose);
  if (H5Sselect_hyperslab(in_file.id(), H5S_SELECT_SET, from.data(), nullptr, extent.data(), nullptr) < 0 ||
      H5Sselect_hyperslab(in_memory.id(), H5S_SELECT_SET, origin.data(), nullptr, extent.data(), nullptr) <
          0 ||
      H5Dread(id_, type_, in_memory.id(), in_file.id(), H5P_DEFAULT, bytes.data()) < 0)
    throw damaged_chunk(at, "cannot be read: " + hdf5_reason());
}

}  // namespace ejk::io
