// The launch contract that all kernels of this directory share, and LibTorch's current stream.
//
// Each kernel is a launcher in NAME.h and device code in NAME.cu (the only files that nvcc compiles). The
// launcher enqueues on `stream` and returns. Pointers are device pointers; the caller owns what they point to
// and keeps it alive until the stream has passed the launch. A launcher throws std::runtime_error if CUDA
// rejects the launch; CatchTorch() converts that to a Status. The order of sums depends only on sizes: equal
// inputs give equal bits.
//
// The CPU reference implementation of each kernel is the path its caller takes for CPU tensors. Tests compare
// the two, at odd sizes too: native_ops_cuda_test and native_experts_cuda_test in fsdp/model/native,
// make_optimizer_cuda_test in fsdp/optimizer, sum_parts_cuda_test here. kernels_bench.cc compares the time of
// each kernel with its minimum memory traffic. In builds without --config=cuda every launcher is a failing
// CHECK (kernels_none.cc), since such builds cannot create GPU tensors.
#pragma once

// Forward declaration, as in the CUDA headers, which are not needed here.
struct CUstream_st;

namespace fsdpd::kernels {

using Stream = CUstream_st*;

// LibTorch's current stream of the calling thread on that device, which is the stream of the lane.
Stream CurrentStream(int device_index);

}  // namespace fsdpd::kernels
