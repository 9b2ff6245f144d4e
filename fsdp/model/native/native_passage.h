// The way of rows (native_rows.h) to the ranks that have their experts, and back. Of the ranks of
// Group::kExpert the r-th has the r-th of as many equal parts of a layer's experts, and works on the rows of
// all of them.
//
// How many rows go from whom to whom is different each time: ranks tell each other first, and the host must
// know it, so on a GPU it waits for that, once a passage. Of a rank that has all experts itself nothing is
// moved, and nobody waits. Call with gradient mode off, on all ranks of the group in the same order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "fsdp/model/native/native_router.h"
#include "fsdp/model/unit/unit_context.h"

namespace fsdpd {

// All empty where a rank has all experts.
struct Passage {
  // Rows for each rank of the group, and from each, rank after rank.
  std::vector<int64_t> sent, received;
  // Of the rows here, expert by expert and of each by rank, filled up on CUDA.
  at::Tensor ends;         // [experts of this rank] int32, as RowPlaces has them.
  at::Tensor order;        // [rows here] int32: which of those that were received each is; -1: none.
  at::Tensor of_received;  // [received] int32: where each is.
};

Passage MakePassage(const Routing& routing, UnitContext* context);

// Where the rows of this rank's experts end, as ToExperts leaves them.
const at::Tensor& EndsHere(const Routing& routing, const Passage& passage);

// From routing's rows, [rows x width], to those here, [rows here x width], and back.
at::Tensor ToExperts(const at::Tensor& rows, const Passage& passage, UnitContext* context);
at::Tensor ToTokens(const at::Tensor& rows, const Passage& passage, UnitContext* context);

}  // namespace fsdpd
