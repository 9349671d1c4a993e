// Communicator: processes (ranks) that compute one result together.
//
// Ranks call the same collective functions in the same order with equal arguments. Results are bit-identical
// for every number of ranks. The library implements only single_process().
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "ejk/array.hpp"

namespace ejk {

using Bytes = std::vector<std::byte>;

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// 0 … size() − 1.
  std::int64_t rank() const { return rank_; }
  std::int64_t size() const { return size_; }
  bool is_first() const { return rank_ == 0; }
  bool is_single() const { return size_ == 1; }
  /// Number of ranks on this machine, which share its memory and its cores.
  virtual std::int64_t local_size() const { return size_; }

  /// Bytes that this rank has sent so far.
  virtual std::int64_t sent_bytes() const { return 0; }

  // Collective. If a rank has failed, they throw OtherRankFailed in all others.

  /// Every rank gets the contribution of each rank, in rank order.
  virtual std::vector<Bytes> all_gather(std::span<const std::byte> sent) = 0;
  /// The same on rank 0; empty on the others.
  virtual std::vector<Bytes> gather(std::span<const std::byte> sent) = 0;
  /// Every rank gets rank 0's bytes; the arguments of the others are ignored.
  virtual Bytes broadcast(std::span<const std::byte> sent) = 0;

  // Point to point; messages between two ranks arrive in order.
  virtual void send(std::int64_t to, std::span<const std::byte> bytes) = 0;
  virtual Bytes receive(std::int64_t from) = 0;

 protected:
  Communicator(std::int64_t rank, std::int64_t size) : rank_(rank), size_(size) {}

 private:
  std::int64_t rank_, size_;
};

Communicator& single_process();

/// Thrown on all ranks but the one that failed, which reports the error.
class OtherRankFailed : public std::exception {
 public:
  const char* what() const noexcept override { return "another rank has failed"; }
};

/// Serialises values for a Communicator; they are read back in the order in which they were written.
class RankMessage {
 public:
  RankMessage() = default;
  explicit RankMessage(Bytes bytes) : bytes_(std::move(bytes)) {}

  template <class T>
  RankMessage& put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    return append(&value, sizeof value);
  }
  /// Their number first.
  template <class T>
  RankMessage& put_all(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    put(static_cast<std::int64_t>(values.size()));
    return append(values.data(), values.size_bytes());
  }
  template <class T>
  RankMessage& put_all(const std::vector<T>& values) {
    return put_all(std::span<const T>(values));
  }
  RankMessage& put_text(std::string_view text) { return put_all(std::span<const char>(text)); }

  template <class T>
  T take() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, next(sizeof value), sizeof value);
    return value;
  }
  template <class T>
  std::vector<T> take_all() {
    std::vector<T> values(count_of(take<std::int64_t>(), sizeof(T)));
    const std::size_t size = values.size() * sizeof(T);
    if (const std::byte* from = next(size); size > 0) std::memcpy(values.data(), from, size);
    return values;
  }
  std::string take_text() {
    const std::vector<char> text = take_all<char>();
    return {text.begin(), text.end()};
  }

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  RankMessage& append(const void* from, std::size_t size);
  const std::byte* next(std::size_t size);
  std::size_t count_of(std::int64_t count, std::size_t size) const;  // of elements that are there

  Bytes bytes_;
  std::size_t at_ = 0;
};

/// The boxes that this rank reads: equal parts in C order, in rank order. Rank 0 alone reads small arrays.
std::vector<ArrayBox> share_of(const Shape& shape, const Communicator& comm);

/// Cost of one rank's part of the work, for plans.
struct RankWork {
  double cost = 0;                 // in the unit of the work's speed: operations, or bytes read
  std::int64_t read_bytes = 0;     // of inputs
  std::int64_t sent_bytes = 0;     // to other ranks
  std::int64_t written_bytes = 0;  // of results
  std::int64_t peak_bytes = 0;     // of memory, about
};

}  // namespace ejk
