// What every kernel of this room shares with its caller.
//
// A kernel is a launcher in NAME.h and its device code in NAME.cu, the only files that nvcc compiles. The
// launcher enqueues on `stream` and returns; pointers are the device's, and what they point to belongs to the
// caller until the stream has passed. It throws std::runtime_error when CUDA refuses the launch, which
// CatchTorch() makes a Status. Sums run in an order that depends on sizes alone: equal inputs give equal
// bits.
//
// The CPU twin of each is what its caller does with CPU tensors, and a test compares the two, at odd sizes
// too: native_ops_cuda_test and native_experts_cuda_test in fsdp/model/native, make_optimizer_cuda_test in
// fsdp/optimizer, sum_parts_cuda_test here. kernels_bench.cc times each against the bytes that it must move.
// In a binary built without --config=cuda a launcher is a CHECK (kernels_none.cc): nobody has a tensor on a
// GPU there.
#pragma once

// As CUDA's headers declare it, which need not be included here.
struct CUstream_st;

namespace fsdpd::kernels {

using Stream = CUstream_st*;

// LibTorch's current stream of the calling thread on the device: the lane's.
Stream CurrentStream(int device_index);

}  // namespace fsdpd::kernels
