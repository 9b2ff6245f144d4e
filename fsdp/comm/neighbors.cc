#include "fsdp/comm/neighbors.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <absl/strings/str_cat.h>

#include <utility>

#include "base/check.h"
#include "fsdp/torch/torch_status.h"

namespace fsdpd {

absl::StatusOr<std::unique_ptr<Communicator>> Neighbors::Make(const CommunicatorOptions& options,
                                                              const MakePair& make) {
  FSDPD_CHECK(options.size > 1);
  std::unique_ptr<Neighbors> ring(new Neighbors(options.rank, options.size));
  const absl::Status status = ring->Connect(options, make);
  if (status.ok()) return ring;
  ring->Abort();  // So that destruction does not wait for ranks that failed to join.
  return status;
}

// Destroys pairs in the order of creation: destruction is collective in NCCL.
Neighbors::~Neighbors() {
  for (const auto& [from, to] : Edges()) {
    if (rank_ == from) sends_.erase(to);
    if (rank_ == to) receives_.erase(from);
  }
}

// Pairs in the same order on all ranks, so that the first pair that waits can always proceed.
std::vector<std::pair<int, int>> Neighbors::Edges() const {
  std::vector<std::pair<int, int>> edges;
  const int pairs = size_ == 2 ? 1 : size_;
  for (int edge = 0; edge < pairs; ++edge) {
    const int next = (edge + 1) % size_;
    edges.emplace_back(edge, next);
    edges.emplace_back(next, edge);
  }
  return edges;
}

absl::Status Neighbors::Connect(const CommunicatorOptions& options, const MakePair& make) {
  for (const auto& [from, to] : Edges()) FSDPD_RETURN_IF_ERROR(ConnectPair(from, to, options, make));
  return absl::OkStatus();
}

absl::Status Neighbors::ConnectPair(int from, int to, const CommunicatorOptions& options,
                                    const MakePair& make) {
  if (rank_ != from && rank_ != to) return absl::OkStatus();
  CommunicatorOptions pair = options;
  pair.name = absl::StrCat(options.name, "/", from, "-", to);
  pair.rank = rank_ == from ? 0 : 1;
  pair.size = 2;
  FSDPD_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> made, make(pair));
  FSDPD_RETURN_IF_ERROR(CatchTorch([&] {
    const bool cuda = options.device == DeviceKind::kCuda;
    const at::Device device = cuda ? at::Device(at::kCUDA, static_cast<at::DeviceIndex>(options.device_index))
                                   : at::Device(at::kCPU);
    const at::Tensor sent = at::zeros({2}, at::TensorOptions(at::kFloat).device(device));
    const at::Tensor received = at::zeros({2}, sent.options());
    FSDPD_RETURN_IF_ERROR(
        made->AllToAll(sent.const_data_ptr(), received.mutable_data_ptr(), 1, DType::kFp32));
    return made->Await();
  }));
  (rank_ == from ? sends_[to] : receives_[from]) = std::move(made);
  return absl::OkStatus();
}

absl::Status Neighbors::Send(const void* buffer, int64_t count, DType dtype, int to) {
  const auto pair = sends_.find(to);
  FSDPD_CHECK(pair != sends_.end());
  return pair->second->Send(buffer, count, dtype, 1);
}

absl::Status Neighbors::Receive(void* buffer, int64_t count, DType dtype, int from) {
  const auto pair = receives_.find(from);
  FSDPD_CHECK(pair != receives_.end());
  return pair->second->Receive(buffer, count, dtype, 0);
}

absl::Status Neighbors::Await() { return sends_.begin()->second->Await(); }

absl::Status Neighbors::Health() const {
  absl::Status status;
  for (const Pairs* pairs : {&sends_, &receives_}) {
    for (const auto& [other, pair] : *pairs) status.Update(pair->Health());
  }
  return status;
}

void Neighbors::Abort() {
  for (const Pairs* pairs : {&sends_, &receives_}) {
    for (const auto& [other, pair] : *pairs) pair->Abort();
  }
}

}  // namespace fsdpd
