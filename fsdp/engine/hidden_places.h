// Where hidden states and their gradients are between a stage's passes and its neighbours:
// kStageTransferSlots fixed tensors of each kind, taken by turns in the order of the program, which says when
// one is free again. A pass copies what came out of its place, and what goes into one. So nothing is
// allocated for what crosses, and no lane frees what another still reads.
//
// Thread safety: Of() from any lane; what is in the tensors is ordered by the program.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <functional>
#include <map>

#include "fsdp/plan/plan.h"

namespace fsdpd {

class HiddenPlaces {
 public:
  // Of an instruction: what a Receive or ReceiveGrad fills and the pass that needs it takes, and what a pass
  // fills and a Send or SendGrad takes. Undefined where nothing crosses.
  struct Places {
    at::Tensor in;
    at::Tensor out;
  };

  // For both of the plan's programs, which must outlive this; `make` makes a place.
  HiddenPlaces(const Plan& plan, const std::function<at::Tensor()>& make);

  // REQUIRES: one of the plan's instructions.
  const Places& Of(const Instruction& instruction) const;

 private:
  void Number(const Program& program, const StagePlace& stage);

  enum Way { kIn, kHiddenOut, kGradOut };
  std::array<std::array<at::Tensor, kStageTransferSlots>, 3> tensors_;  // By way.
  std::map<const Instruction*, Places> places_;
};

}  // namespace fsdpd
