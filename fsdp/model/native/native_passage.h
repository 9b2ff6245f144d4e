// The way of rows (native_router.h) to the ranks that have their experts, and back. Of the ranks of
// Group::kExpert the r-th has the r-th of as many equal parts of a layer's experts, and works on the rows of
// all of them.
//
// How many rows go from whom to whom is different each time: ranks tell each other first, and the host knows
// it. Of a rank that has all experts itself nothing is moved. Call with gradient mode off, on all ranks of
// the group in the same order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "fsdp/model/native/native_experts.h"
#include "fsdp/model/unit/unit_context.h"

namespace fsdpd {

struct Passage {
  RowCounts of_expert;  // Of each expert that this rank has.
  // Rows for each rank of the group, and from each. Empty where there is only this one.
  std::vector<int64_t> sent, received;
  // [rows here]: of what was received, rank after rank, the rows of each expert together, int64.
  at::Tensor order;
};

// `of_expert`: rows that this rank's tokens have for each of all experts.
Passage MakePassage(const RowCounts& of_expert, UnitContext* context);

// From the order of routing, [rows x width], to [rows here x width]: expert by expert, and of each by rank.
at::Tensor ToExperts(const at::Tensor& rows, const Passage& passage, UnitContext* context);
at::Tensor ToTokens(const at::Tensor& rows, const Passage& passage, UnitContext* context);

}  // namespace fsdpd
