// A communicator whose ranks are the processes of an MPI job.
//
// Ranks that have failed are told of at meetings: each begins with one bit from everybody. So no rank waits for
// one that will not come, and none has to be killed; only what goes wrong in the midst of a meeting (no memory
// for what others send) ends the job by MPI_Abort, after temporary files are removed. Waiting does not spin: other
// ranks may need the core.
#pragma once

#include <mpi.h>

#include <string>

#include "command_line.hpp"
#include "ejk/communicator.hpp"

namespace ejk::app {

class MpiCommunicator final : public Communicator {
 public:
  /// All processes of the job, after MPI_Init; until MPI_Finalize.
  MpiCommunicator();
  ~MpiCommunicator() override;
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  /// See Conclude.
  int conclude(const RankExit& mine);
  std::int64_t local_size() const override { return local_size_; }
  std::int64_t sent_bytes() const override { return sent_bytes_; }

  std::vector<Bytes> all_gather(std::span<const std::byte> mine) override;
  std::vector<Bytes> gather(std::span<const std::byte> mine) override;
  Bytes broadcast(std::span<const std::byte> mine) override;
  void send(std::int64_t to, std::span<const std::byte> bytes) override;
  Bytes receive(std::int64_t from) override;

 private:
  /// Whether some rank has failed. All ranks call it.
  bool anyone_failed(bool mine);
  /// The beginning of a meeting: OtherRankFailed where some rank has failed.
  void meet();
  void broadcast_from(std::int64_t rank, Bytes& bytes);

  MPI_Comm world_ = MPI_COMM_NULL;  // of this team's own messages
  std::int64_t local_size_ = 1, sent_bytes_ = 0;
  std::string host_;
};

}  // namespace ejk::app
