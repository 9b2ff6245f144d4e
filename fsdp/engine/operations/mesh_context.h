// UnitContext of a rank in a mesh: the communicators that a unit uses inside its passes, on the lane of the
// unit's instruction or overlapped with it (Aside).
//
// Call order: TakeStatus after each call of the unit. Not thread-safe.
#pragma once

#include <absl/status/status.h>

#include <functional>
#include <utility>

#include "fsdp/comm/connected_mesh.h"
#include "fsdp/lane/side_stream.h"
#include "fsdp/model/unit/unit_context.h"
#include "fsdp/plan/layout/layout.h"

namespace fsdpd {

class MeshContext : public UnitContext {
 public:
  // Where routing statistics of a unit are accumulated; `choices` is undefined if no routing bias uses them.
  struct RoutingBuffers {
    at::Tensor sums;
    at::Tensor choices;
    at::Tensor overflow;
    const double* expert_capacity = nullptr;
  };

  // `mesh`, `unit`, `side_stream` and the pointer in `routing` must outlive the context. `grad_loss` is
  // returned by GradLoss().
  MeshContext(const ConnectedMesh* mesh, const UnitLayout* unit, SideStream* side_stream,
              at::Tensor grad_loss, RoutingBuffers routing)
      : mesh_(mesh),
        unit_(unit),
        side_stream_(side_stream),
        grad_loss_(std::move(grad_loss)),
        routing_(std::move(routing)) {}

  int64_t SizeOf(Group group) const override { return mesh_->position().SizeOf(group); }
  int64_t IndexIn(Group group) const override { return mesh_->position().IndexIn(group); }
  void AllReduce(Group group, at::Tensor values) override;
  void AllGather(Group group, at::Tensor parts) override;
  void SendParts(Group group, at::Tensor sent, at::Tensor received) override;
  void AllToAll(Group group, at::Tensor sent, at::Tensor received) override;
  void Start(std::function<void()> exchanges) override;
  void Await() override;
  at::Tensor GradLoss() const override { return grad_loss_; }
  double ExpertCapacity() const override { return *routing_.expert_capacity; }
  at::Tensor ExpertOverflow() const override { return routing_.overflow; }
  void AddRouting(const at::Tensor& sums, const at::Tensor& choices) override {
    routing_.sums.add_(sums);
    if (routing_.choices.defined()) routing_.choices.add_(choices);
  }

  // Returns and clears the first error. FAILED_PRECONDITION: the unit communicated in a way that its facts do
  // not declare; otherwise an error of the communicator.
  absl::Status TakeStatus();

 private:
  // OK if the unit's facts declare this exchange, and `tensor` is contiguous and of a declared type.
  absl::Status Check(Exchange what, Group group, const at::Tensor& tensor) const;
  void Send(Exchange what, Group group, const at::Tensor& sent, const at::Tensor& received);
  Communicator* Between(Group group) const { return mesh_->Find(group, Role::kUnit); }

  const ConnectedMesh* const mesh_;
  const UnitLayout* const unit_;
  SideStream* const side_stream_;
  const at::Tensor grad_loss_;
  const RoutingBuffers routing_;
  absl::Status status_;
};

}  // namespace fsdpd
