// Scoped deterministic mode (train.deterministic): while an instance exists, LibTorch, cuBLAS and NCCL
// compute sums in an order that is the same on every run. Create it before the first product and the first
// communicator.
//
// All sums of a step, and why two runs give the same bits:
//
//   batches, initial values  computed by index from the job's seed, independent of rank.
//   on CPUs                  deterministic by default: threads divide tensors by size, and transports sum by
//                            rank.
//   own kernels              deterministic by default (fsdp/kernels): sums are ordered by thread, then by
//                            block. Atomics are used only for maxima and integers.
//   embedding, backward      deterministic by default: index_put_ sorts the tokens and adds rows in order.
//   experts                  deterministic by default: rows are in the order of choices and summed in it;
//                            grouped products do not split sums; counts are integers.
//   products                 deterministic by default: cuBLAS and cuBLASLt choose by shape, stride,
//                            alignment and workspace, and add split sums in order. LibTorch requires
//                            CUBLAS_WORKSPACE_CONFIG for that.
//   attention, forward       deterministic by default.
//   attention, backward      not by default: workers of cuDNN and flash attention add to the gradients of
//                            queries in any order. cuDNN has a deterministic mode that LibTorch 2.11 does
//                            not request, so cuDNN is not used; flash attention uses one sum per worker,
//                            and the fp32 kernel one worker per sum.
//   NCCL reductions          rings and trees add in rank order; NVLink switches (NVLS) in order of arrival,
//                            so they are disabled. 16-bit gradients are summed locally, by rank.
//   autograd units           LibTorch's operators use their deterministic variant, or fail if there is none.
//                            A plug-in's own kernels are not controlled.
//
// The mode is process-wide, like LibTorch's switches: ranks that are threads each hold an instance, and the
// last one restores the previous state. NCCL and cuBLAS read the environment only once, so their settings
// remain.
#pragma once

namespace fsdpd {

class Deterministic {
 public:
  Deterministic();
  ~Deterministic();
  Deterministic(const Deterministic&) = delete;
  Deterministic& operator=(const Deterministic&) = delete;
};

}  // namespace fsdpd
