// Communicator on MPI. Every collective starts with an all-reduced failure flag, so that a failed rank never
// leaves others waiting. A failure inside a collective (no memory for a message) aborts the job after
// removing temporary files. Waiting yields the CPU instead of spinning.
#pragma once

#include <mpi.h>

#include <string>

#include "command_line.hpp"
#include "ejk/communicator.hpp"

namespace ejk::app {

class MpiCommunicator final : public Communicator {
 public:
  /// The processes of the job. Lives between MPI_Init and MPI_Finalize.
  MpiCommunicator();
  ~MpiCommunicator() override;
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  /// See Conclude.
  int conclude(const RankExit& own);
  std::int64_t local_size() const override { return local_size_; }
  std::int64_t sent_bytes() const override { return sent_bytes_; }

  std::vector<Bytes> all_gather(std::span<const std::byte> sent) override;
  std::vector<Bytes> gather(std::span<const std::byte> sent) override;
  Bytes broadcast(std::span<const std::byte> sent) override;
  void send(std::int64_t to, std::span<const std::byte> bytes) override;
  Bytes receive(std::int64_t from) override;

 private:
  /// Whether any rank has failed. Collective.
  bool any_failed(bool own);
  /// Begins a collective. Throws OtherRankFailed if a rank has failed.
  void begin_collective();
  void broadcast_from(std::int64_t rank, Bytes& bytes);

  MPI_Comm world_ = MPI_COMM_NULL;  // a duplicate of MPI_COMM_WORLD
  std::int64_t local_size_ = 1, sent_bytes_ = 0;
  std::string host_;
};

}  // namespace ejk::app
