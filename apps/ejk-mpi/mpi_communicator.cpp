// Messages over MPI: each is preceded by its length and split into chunks of up to 1 GiB, since MPI's counts
// are int. Operations are non-blocking; they are polled, after a few milliseconds with increasing sleeps.
//
// tests: tests/mpi/
#include "mpi_communicator.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <time.h>

#include <algorithm>

#include "ejk/io.hpp"
#include "errors.hpp"
#include "terminal.hpp"

namespace ejk::app {

namespace {

constexpr std::size_t kChunk = std::size_t{1} << 30;

// Waits for an operation. Yields the core, and after some milliseconds sleeps: the other ranks are computing
// then.
void wait(MPI_Request& request) {
  constexpr double kPatience = 0.003;                              // seconds
  constexpr long kFirstSleep = 50'000, kLongestSleep = 1'000'000;  // nanoseconds
  long sleep = kFirstSleep;
  const double begin = MPI_Wtime();
  for (int done = 0;;) {
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done != 0) return;
    if (MPI_Wtime() - begin < kPatience) {
      sched_yield();
      continue;
    }
    const timespec time{0, sleep};
    nanosleep(&time, nullptr);
    sleep = std::min(2 * sleep, kLongestSleep);
  }
}

// Calls f(first, count) for each chunk of a message.
template <class F>
void for_each_chunk(std::size_t bytes, F&& f) {
  for (std::size_t first = 0; first < bytes; first += kChunk)
    f(first, static_cast<int>(std::min(kChunk, bytes - first)));
}

}  // namespace

MpiCommunicator::MpiCommunicator()
    : Communicator(
          [] {
            int rank = 0;
            MPI_Comm_rank(MPI_COMM_WORLD, &rank);
            return rank;
          }(),
          [] {
            int size = 1;
            MPI_Comm_size(MPI_COMM_WORLD, &size);
            return size;
          }()) {
  MPI_Comm_dup(MPI_COMM_WORLD, &world_);
  MPI_Comm here = MPI_COMM_NULL;
  MPI_Comm_split_type(world_, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here);
  int ranks = 1;
  MPI_Comm_size(here, &ranks);
  MPI_Comm_free(&here);
  local_size_ = ranks;
  char name[MPI_MAX_PROCESSOR_NAME] = {};
  int length = 0;
  MPI_Get_processor_name(name, &length);
  host_.assign(name, static_cast<std::size_t>(length));
}

MpiCommunicator::~MpiCommunicator() { MPI_Comm_free(&world_); }

bool MpiCommunicator::any_failed(bool own) {
  const int failed = own ? 1 : 0;
  int any = 0;
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Iallreduce(&failed, &any, 1, MPI_INT, MPI_MAX, world_, &request);
  wait(request);
  return any != 0;
}

void MpiCommunicator::begin_collective() {
  if (any_failed(false)) throw OtherRankFailed();
}

void MpiCommunicator::broadcast_from(std::int64_t rank, Bytes& bytes) {
  const int root = static_cast<int>(rank);
  std::uint64_t size = bytes.size();
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Ibcast(&size, 1, MPI_UINT64_T, root, world_, &request);
  wait(request);
  if (rank != this->rank()) bytes.resize(size);
  for_each_chunk(size, [&](std::size_t first, int count) {
    MPI_Ibcast(bytes.data() + first, count, MPI_BYTE, root, world_, &request);
    wait(request);
  });
}

Bytes MpiCommunicator::broadcast(std::span<const std::byte> sent) {
  begin_collective();
  Bytes bytes;
  if (is_first()) bytes.assign(sent.begin(), sent.end()), sent_bytes_ += std::ssize(sent);
  broadcast_from(0, bytes);
  return bytes;
}

std::vector<Bytes> MpiCommunicator::all_gather(std::span<const std::byte> sent) {
  begin_collective();
  std::vector<std::uint64_t> sizes(static_cast<std::size_t>(size()));
  const std::uint64_t own = sent.size();
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Iallgather(&own, 1, MPI_UINT64_T, sizes.data(), 1, MPI_UINT64_T, world_, &request);
  wait(request);
  sent_bytes_ += std::ssize(sent);
  std::vector<Bytes> all(sizes.size());
  std::uint64_t sum = 0;
  for (const std::uint64_t bytes : sizes) sum += bytes;
  if (sum <= kChunk) {
    std::vector<int> counts, starts;
    for (int at = 0; const std::uint64_t bytes : sizes) {
      counts.push_back(static_cast<int>(bytes));
      starts.push_back(at);
      at += counts.back();
    }
    Bytes joined(sum);
    MPI_Iallgatherv(sent.data(), static_cast<int>(own), MPI_BYTE, joined.data(), counts.data(), starts.data(),
                    MPI_BYTE, world_, &request);
    wait(request);
    for (std::size_t r = 0; r < all.size(); ++r)
      all[r].assign(joined.begin() + starts[r], joined.begin() + starts[r] + counts[r]);
    return all;
  }
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (static_cast<std::int64_t>(r) == rank()) all[r].assign(sent.begin(), sent.end());
    broadcast_from(static_cast<std::int64_t>(r), all[r]);
  }
  return all;
}

std::vector<Bytes> MpiCommunicator::gather(std::span<const std::byte> sent) {
  begin_collective();
  if (!is_first()) {
    send(0, sent);
    return {};
  }
  std::vector<Bytes> all{Bytes(sent.begin(), sent.end())};
  for (std::int64_t r = 1; r < size(); ++r) all.push_back(receive(r));
  return all;
}

void MpiCommunicator::send(std::int64_t to, std::span<const std::byte> bytes) {
  const int target = static_cast<int>(to);
  const std::uint64_t size = bytes.size();
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Isend(&size, 1, MPI_UINT64_T, target, 0, world_, &request);
  wait(request);
  for_each_chunk(bytes.size(), [&](std::size_t first, int count) {
    MPI_Isend(bytes.data() + first, count, MPI_BYTE, target, 0, world_, &request);
    wait(request);
  });
  sent_bytes_ += std::ssize(bytes);
}

Bytes MpiCommunicator::receive(std::int64_t from) {
  const int source = static_cast<int>(from);
  std::uint64_t size = 0;
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Irecv(&size, 1, MPI_UINT64_T, source, 0, world_, &request);
  wait(request);
  Bytes bytes(size);
  for_each_chunk(size, [&](std::size_t first, int count) {
    MPI_Irecv(bytes.data() + first, count, MPI_BYTE, source, 0, world_, &request);
    wait(request);
  });
  return bytes;
}

int MpiCommunicator::conclude(const RankExit& own) {
  // A stopped rank has seen the failure flag already.
  const bool failed = !own.message.empty();
  const bool any = own.stopped || any_failed(failed);
  if (!any) return is_first() ? own.status : kExitDone;
  RankMessage message;
  message.put(failed).put(own.status).put_text(own.message).put_text(host_);
  if (!is_first()) {
    send(0, message.bytes());
    return kExitDone;
  }
  int status = kExitBug;
  bool printed = false;
  for (std::int64_t r = 0; r < size(); ++r) {
    RankMessage other(r == 0 ? Bytes(message.bytes().begin(), message.bytes().end()) : receive(r));
    if (!other.take<bool>() || printed) continue;
    printed = true;
    status = other.take<int>();
    const std::string text = other.take_text();
    // An error in the arguments is the same on all ranks, and rank 0 prints it. Others name their rank.
    print_error(r == 0 ? text : fmt::format("{}(on rank {}, {})\n", text, r, other.take_text()));
  }
  return status;
}

}  // namespace ejk::app
