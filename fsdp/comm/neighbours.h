// A ring of ranks each of which sends to the two beside it and receives from them, over communicators of two
// ranks, one for each direction: NCCL does what one communicator is given in the order in which it was
// given, whatever streams it came on, so what is sent would wait for what is to come, and both ends for each
// other. It has no collectives.
//
// All pairs are made, and have moved something both ways, before Make returns: NCCL connects two ranks when
// they first send, and the host waits for that.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "fsdp/comm/communicator.h"

namespace fsdpd {

class Neighbours : public Communicator {
 public:
  using MakePair = std::function<absl::StatusOr<std::unique_ptr<Communicator>>(const CommunicatorOptions&)>;

  // Blocks until all ranks have called it. `make`: one of the two ranks of a pair, as MakeCommunicator().
  static absl::StatusOr<std::unique_ptr<Communicator>> Make(const CommunicatorOptions& options,
                                                            const MakePair& make);

  ~Neighbours() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  // REQUIRES: the other rank is a neighbour.
  absl::Status Send(const void* buffer, int64_t count, DType dtype, int to) override;
  absl::Status Receive(void* buffer, int64_t count, DType dtype, int from) override;

  absl::Status AllGather(void*, int64_t, DType) override { return None(); }
  absl::Status ReduceScatter(void*, void*, float*, int64_t, DType) override { return None(); }
  absl::Status AllReduce(float*, int64_t) override { return None(); }
  absl::Status AllToAll(const void*, void*, int64_t, DType) override { return None(); }
  absl::Status Broadcast(void*, int64_t, DType, int) override { return None(); }
  absl::Status Barrier() override { return None(); }

  absl::Status Await() override;
  absl::Status Health() const override;
  void Abort() override;

 private:
  using Pairs = std::map<int, std::unique_ptr<Communicator>>;  // By the other rank; who sends has rank 0.

  Neighbours(int rank, int size) : rank_(rank), size_(size) {}
  std::vector<std::pair<int, int>> Ways() const;  // From a rank to another.
  absl::Status Connect(const CommunicatorOptions& options, const MakePair& make);
  absl::Status ConnectPair(int from, int to, const CommunicatorOptions& options, const MakePair& make);
  static absl::Status None() { return absl::UnimplementedError("neighbours have no collectives"); }

  const int rank_;
  const int size_;
  Pairs sends_;
  Pairs receives_;
};

}  // namespace fsdpd
