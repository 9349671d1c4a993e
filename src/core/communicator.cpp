// A communicator of one rank, serialisation of messages, and the boxes that each rank reads.
// tests: tests/core/test_communicator.cpp
#include "ejk/communicator.hpp"

#include <algorithm>

#include "core/pieces.hpp"
#include "core/require.hpp"
#include "ejk/error.hpp"

namespace ejk {

namespace {

Bytes copy_of(std::span<const std::byte> bytes) { return {bytes.begin(), bytes.end()}; }

class Alone final : public Communicator {
 public:
  Alone() : Communicator(0, 1) {}
  std::vector<Bytes> all_gather(std::span<const std::byte> sent) override { return {copy_of(sent)}; }
  std::vector<Bytes> gather(std::span<const std::byte> sent) override { return {copy_of(sent)}; }
  Bytes broadcast(std::span<const std::byte> sent) override { return copy_of(sent); }
  void send(std::int64_t, std::span<const std::byte>) override { no_other(); }
  Bytes receive(std::int64_t) override { no_other(); }

 private:
  [[noreturn]] static void no_other() {
    throw Error(Error::Kind::internal, "a communicator of one rank has no peers");
  }
};

Error too_short() { return Error(Error::Kind::internal, "a message of a rank is too short"); }

}  // namespace

Communicator& single_process() {
  static Alone comm;
  return comm;
}

RankMessage& RankMessage::append(const void* from, std::size_t size) {
  const auto* begin = static_cast<const std::byte*>(from);
  if (size > 0) bytes_.insert(bytes_.end(), begin, begin + size);
  return *this;
}

std::size_t RankMessage::count_of(std::int64_t count, std::size_t size) const {
  if (count < 0 || static_cast<std::size_t>(count) > (bytes_.size() - at_) / size) throw too_short();
  return static_cast<std::size_t>(count);
}

const std::byte* RankMessage::next(std::size_t size) {
  if (size > bytes_.size() - at_) throw too_short();
  const std::byte* here = bytes_.data() + at_;
  at_ += size;
  return here;
}

std::vector<ArrayBox> share_of(const Shape& shape, const Communicator& comm) {
  constexpr std::int64_t kLeast = 1024;  // elements that are worth a message
  const std::int64_t all = element_count(shape),
                     ranks = std::clamp(all / kLeast, std::int64_t{1}, comm.size());
  const auto begin_of = [&](std::int64_t rank) {
    rank = std::min(rank, ranks);
    return all / ranks * rank + std::min(all % ranks, rank);
  };
  std::vector<ArrayBox> boxes;
  core::for_each_box(shape, begin_of(comm.rank()), begin_of(comm.rank() + 1),
                     [&](const Shape& start, const Shape& count) {
                       boxes.push_back({start, count});
                     });
  return boxes;
}

}  // namespace ejk
