// A function of tensors that AOTInductor compiled into a shared object. It contains no weights and no Python.
//
// The library stays loaded as long as the call. Thread safety: one thread runs a call. Results are allocated
// by LibTorch's allocators. On CUDA it runs on the current stream.
#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <vector>

namespace fsdpd {

class CompiledCall {
 public:
  virtual ~CompiledCall() = default;

  // Errors: FAILED_PRECONDITION with the loader's message.
  static absl::StatusOr<std::unique_ptr<CompiledCall>> Load(const std::string& library, at::Device device);

  // Inputs have the shapes, strides and types that the function was compiled for. Throws c10::Error.
  virtual std::vector<at::Tensor> Run(std::vector<at::Tensor> inputs) = 0;
};

}  // namespace fsdpd
