// Processes that do one piece of work together. Each runs the same program on the same inputs, calls the same
// functions in the same order with equal arguments, and does a part of what they do.
//
// A function that takes a Team is such a call: all members make it, or none. What it gives is the same, to the
// bit, for every size of the team: work is cut where no result can see it, and sums over members are made in
// the order of their ranks. How members talk is the implementation's; the library knows none but alone().
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

class Team {
 public:
  virtual ~Team() = default;
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  /// 0 … size() − 1.
  std::int64_t rank() const { return rank_; }
  std::int64_t size() const { return size_; }
  bool is_first() const { return rank_ == 0; }
  bool is_alone() const { return size_ == 1; }
  /// Of its members, those on this machine, which share its memory and its cores.
  virtual std::int64_t members_here() const { return size_; }

  /// What this member has sent to others so far.
  virtual std::int64_t sent_bytes() const { return 0; }

  // All members call these together. A member that has failed meanwhile makes them throw TeamStopped in all
  // others.

  /// What each member gives, by ranks, to all.
  virtual std::vector<Bytes> all_gather(std::span<const std::byte> mine) = 0;
  /// The same to rank 0; nothing to the others.
  virtual std::vector<Bytes> gather(std::span<const std::byte> mine) = 0;
  /// What rank 0 gives, to all; what others give is not looked at.
  virtual Bytes broadcast(std::span<const std::byte> mine) = 0;

  // Between two of them, in order.
  virtual void send(std::int64_t to, std::span<const std::byte> bytes) = 0;
  virtual Bytes receive(std::int64_t from) = 0;

 protected:
  Team(std::int64_t rank, std::int64_t size) : rank_(rank), size_(size) {}

 private:
  std::int64_t rank_, size_;
};

/// A team of one.
Team& alone();

/// Thrown where another member has failed, which is the one that says why.
class TeamStopped : public std::exception {
 public:
  const char* what() const noexcept override { return "another member of the team has failed"; }
};

/// Values as bytes for a Team, and the values again, in the order in which they were put.
class TeamMessage {
 public:
  TeamMessage() = default;
  explicit TeamMessage(Bytes bytes) : bytes_(std::move(bytes)) {}

  template <class T>
  TeamMessage& put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    return append(&value, sizeof value);
  }
  /// Their number first.
  template <class T>
  TeamMessage& put_all(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    put(static_cast<std::int64_t>(values.size()));
    return append(values.data(), values.size_bytes());
  }
  template <class T>
  TeamMessage& put_all(const std::vector<T>& values) {
    return put_all(std::span<const T>(values));
  }
  TeamMessage& put_text(std::string_view text) { return put_all(std::span<const char>(text)); }

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
  TeamMessage& append(const void* from, std::size_t size);
  const std::byte* next(std::size_t size);
  std::size_t count_of(std::int64_t count, std::size_t size) const;  // of elements that are there

  Bytes bytes_;
  std::size_t at_ = 0;
};

/// `parts` + 1 bounds of runs of items, one after the other, whose costs are about the same: run r is
/// [bounds[r], bounds[r + 1]), perhaps empty. Every run ends where its cost comes nearest to its share of the
/// whole, so that none has more than a share and an item's cost. Costs are finite and not below 0; where all
/// are 0, items count alike.
std::vector<std::int64_t> even_runs(std::span<const double> costs, std::int64_t parts);

/// What a member reads of an array that all can read, where each takes a part of about the same size: boxes that
/// follow one another in C order, and behind those of the ranks before. Small arrays are rank 0's.
std::vector<ArrayBox> share_of(const Shape& shape, const Team& team);

/// All of an array in boxes of at most `most` (≥ 1) elements that follow one another in C order: what goes in one
/// message.
std::vector<ArrayBox> pieces_of(const Shape& shape, std::int64_t most);

/// What a member of a team does and moves, for plans.
struct WorkShare {
  double cost = 0;                 // in the unit of the work's speed: operations, or bytes looked at
  std::int64_t read_bytes = 0;     // of inputs
  std::int64_t sent_bytes = 0;     // to other members
  std::int64_t written_bytes = 0;  // of results
  std::int64_t peak_bytes = 0;     // of memory, about
};

}  // namespace ejk
