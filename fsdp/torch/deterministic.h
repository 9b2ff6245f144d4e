// While one of these is there, what LibTorch, cuBLAS and NCCL add up is added in an order that is the same on
// every run (train.deterministic). Who computes makes one before the first product and communicator.
//
// This is the list of what a step adds up, and why two runs of it give the same bits:
//
//   batches, initial values  drawn by number from the job's seed, whoever draws.
//   on CPUs                  all as it is: threads part tensors by their sizes, and transports sum by rank.
//   own kernels              as they are (fsdp/kernels): a block in the order of its threads, then blocks one
//                            after the other. Atomics are of maxima and of whole numbers alone.
//   embedding, backward      as it is: index_put_ sorts the tokens, and adds each one's rows in order.
//   experts                  as they are: rows lie in the order of choices and are added up in it, grouped
//                            products split no sum, and how often each was chosen is a whole number.
//   products                 as they are: cuBLAS and cuBLASLt choose by shapes, strides, alignment and
//                            workspace, the same on each run, and add up the parts of a sum that they split
//                            in order. LibTorch multiplies only where CUBLAS_WORKSPACE_CONFIG promises it.
//   attention, forward       as it is.
//   attention, backward      not so by itself: cuDNN's and flash attention's workers add to the gradients of
//                            queries as they come. cuDNN could do otherwise, but LibTorch 2.11 does not ask
//                            it to, and so does not choose it here; flash attention gets a sum for each of
//                            its workers, and the kernel for fp32 one worker a sum.
//   NCCL's sums              rings and trees add in the order of ranks; NVLink's switches (NVLS) as parts
//                            arrive: they are left out. Gradients on a narrow wire are summed here, by rank.
//   autograd units           LibTorch's operators take the ordered way that they have, and are an error where
//                            there is none. A plug-in's own kernels do what they do.
//
// Process-wide, as LibTorch's switches are: ranks that are threads hold one each, and the last one that goes
// puts back what was. NCCL and cuBLAS read the environment once, and it stays.
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
