// Neighbors: ring in which each rank sends to and receives from the two adjacent ranks, over communicators
// of two ranks, one per direction. A single NCCL communicator executes its operations in the order of the
// calls, whatever their streams: a send would wait for a pending receive, and both ends for each other.
// Neighbors has no collectives.
//
// Make connects all pairs and exchanges a message in each before it returns, because NCCL connects two ranks
// only in their first send, which blocks the host.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "fsdp/comm/communicator.h"

namespace fsdpd {

class Neighbors : public Communicator {
 public:
  using MakePair = std::function<absl::StatusOr<std::unique_ptr<Communicator>>(const CommunicatorOptions&)>;

  // Blocks until all ranks have called it. `make`: creates one end of a pair, like MakeCommunicator().
  static absl::StatusOr<std::unique_ptr<Communicator>> Make(const CommunicatorOptions& options,
                                                            const MakePair& make);

  ~Neighbors() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  // REQUIRES: the other rank is adjacent.
  absl::Status Send(const void* buffer, int64_t count, DType dtype, int to) override;
  absl::Status Receive(void* buffer, int64_t count, DType dtype, int from) override;

  absl::Status AllGather(void*, int64_t, DType) override { return Unsupported(); }
  absl::Status ReduceScatter(void*, void*, float*, int64_t, DType) override { return Unsupported(); }
  absl::Status AllReduce(float*, int64_t) override { return Unsupported(); }
  absl::Status AllToAll(const void*, void*, int64_t, DType) override { return Unsupported(); }
  absl::Status Broadcast(void*, int64_t, DType, int) override { return Unsupported(); }
  absl::Status Barrier() override { return Unsupported(); }

  absl::Status Await() override;
  absl::Status Health() const override;
  void Abort() override;

 private:
  using Pairs = std::map<int, std::unique_ptr<Communicator>>;  // By the other rank; the sender has rank 0.

  Neighbors(int rank, int size) : rank_(rank), size_(size) {}
  std::vector<std::pair<int, int>> Edges() const;  // Directed edges: sender, receiver.
  absl::Status Connect(const CommunicatorOptions& options, const MakePair& make);
  absl::Status ConnectPair(int from, int to, const CommunicatorOptions& options, const MakePair& make);
  static absl::Status Unsupported() {
    return absl::UnimplementedError("collectives are not supported between neighbors");
  }

  const int rank_;
  const int size_;
  Pairs sends_;
  Pairs receives_;
};

}  // namespace fsdpd
