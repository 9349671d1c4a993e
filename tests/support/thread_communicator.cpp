#include "support/thread_communicator.hpp"

#include <map>

namespace ejk::test {

namespace {

// What all ranks share.
struct Room {
  explicit Room(std::int64_t ranks) : size(ranks), given(static_cast<std::size_t>(ranks)) {}

  std::int64_t size;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Bytes> given;  // at the meeting that is under way
  std::int64_t arrived = 0, left = 0, failed = 0;
  std::int64_t meetings = 0;
  std::map<std::pair<std::int64_t, std::int64_t>, std::deque<Bytes>> sent;
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(Room& room, std::int64_t rank) : Communicator(rank, room.size), room_(room) {}

  std::vector<Bytes> all_gather(std::span<const std::byte> mine) override {
    std::unique_lock lock(room_.mutex);
    // All have left the meeting before.
    wait(lock, [&] { return room_.arrived < room_.size; });
    const std::int64_t meeting = room_.meetings;
    room_.given[static_cast<std::size_t>(rank())].assign(mine.begin(), mine.end());
    if (++room_.arrived == room_.size) ++room_.meetings;
    room_.changed.notify_all();
    wait(lock, [&] { return room_.meetings > meeting; });
    std::vector<Bytes> all = room_.given;
    if (++room_.left == room_.size) room_.arrived = room_.left = 0;
    room_.changed.notify_all();
    return all;
  }
  std::vector<Bytes> gather(std::span<const std::byte> mine) override {
    std::vector<Bytes> all = all_gather(mine);
    return is_first() ? std::move(all) : std::vector<Bytes>();
  }
  Bytes broadcast(std::span<const std::byte> mine) override { return all_gather(mine).front(); }
  void send(std::int64_t to, std::span<const std::byte> bytes) override {
    const std::scoped_lock lock(room_.mutex);
    room_.sent[{rank(), to}].emplace_back(bytes.begin(), bytes.end());
    room_.changed.notify_all();
  }
  Bytes receive(std::int64_t from) override {
    std::unique_lock lock(room_.mutex);
    std::deque<Bytes>& queue = room_.sent[{from, rank()}];
    wait(lock, [&] { return !queue.empty(); });
    Bytes bytes = std::move(queue.front());
    queue.pop_front();
    return bytes;
  }

 private:
  template <class Condition>
  void wait(std::unique_lock<std::mutex>& lock, Condition&& condition) {
    room_.changed.wait(lock, [&] { return room_.failed > 0 || condition(); });
    if (!condition()) throw OtherRankFailed();
  }

  Room& room_;
};

}  // namespace

void run_ranks(std::int64_t size, const std::function<void(Communicator&)>& f) {
  Room room(size);
  std::exception_ptr failure;
  std::vector<std::thread> threads;
  for (std::int64_t rank = 0; rank < size; ++rank)
    threads.emplace_back([&room, &failure, &f, rank] {
      ThreadCommunicator comm(room, rank);
      try {
        f(comm);
      } catch (const OtherRankFailed&) {
      } catch (...) {
        const std::scoped_lock lock(room.mutex);
        if (!failure) failure = std::current_exception();
        ++room.failed;
        room.changed.notify_all();
      }
    });
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace ejk::test
