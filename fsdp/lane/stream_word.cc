#include "fsdp/lane/stream_word.h"

#include <absl/strings/str_format.h>

#include "base/check.h"

namespace fsdpd {
namespace {

// The driver versions that introduced the functions, which select their types. The driver library is not
// linked, so a CUDA build starts on a host without it and can report what is missing.
constexpr unsigned int kAttributeVersion = 2000;
constexpr unsigned int kWriteValueVersion = 11070;

// Clears CUDA's sticky error, so that the next caller does not get it: a lane works without the word.
absl::Status StatusOfCuda(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();
  return absl::InternalError(absl::StrFormat("%s: %s", call, cudaGetErrorString(error)));
}

template <typename Function>
absl::Status FindInDriver(const char* name, unsigned int version, Function* function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result);
  if (error != cudaSuccess || result != cudaDriverEntryPointSuccess || found == nullptr) {
    cudaGetLastError();  // Clears the sticky error.
    return absl::UnimplementedError(absl::StrFormat("the CUDA driver has no %s", name));
  }
  *function = reinterpret_cast<Function>(found);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<StreamWord>> StreamWord::Make(std::atomic<uint64_t>* word, int64_t bytes) {
  std::unique_ptr<StreamWord> made(new StreamWord(word));
  made->abandoned_ = true;  // Nothing to unregister yet.
  CUresult (*attribute_of)(int*, CUdevice_attribute, CUdevice) = nullptr;
  FSDPD_RETURN_IF_ERROR(FindInDriver("cuDeviceGetAttribute", kAttributeVersion, &attribute_of));
  FSDPD_RETURN_IF_ERROR(FindInDriver("cuStreamWriteValue64", kWriteValueVersion, &made->write_value_));
  int device = 0, can = 0;
  FSDPD_RETURN_IF_ERROR(StatusOfCuda(cudaGetDevice(&device), "cudaGetDevice"));
  const CUresult asked = attribute_of(&can, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, device);
  if (asked != CUDA_SUCCESS || can == 0)
    return absl::UnimplementedError(
        absl::StrFormat("CUDA device %d does not support 64-bit stream memory operations", device));
  FSDPD_RETURN_IF_ERROR(StatusOfCuda(
      cudaHostRegister(word, static_cast<size_t>(bytes), cudaHostRegisterMapped), "cudaHostRegister"));
  made->abandoned_ = false;
  void* address = nullptr;
  FSDPD_RETURN_IF_ERROR(
      StatusOfCuda(cudaHostGetDevicePointer(&address, word, 0), "cudaHostGetDevicePointer"));
  made->address_ = reinterpret_cast<CUdeviceptr>(address);
  return made;
}

StreamWord::~StreamWord() {
  if (!abandoned_) StatusOfCuda(cudaHostUnregister(word_), "cudaHostUnregister").IgnoreError();
}

absl::Status StreamWord::Store(uint64_t value, cudaStream_t stream) {
  const CUresult result = write_value_(stream, address_, value, CU_STREAM_WRITE_VALUE_DEFAULT);
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrFormat("cuStreamWriteValue64: error %d", static_cast<int>(result)));
}

}  // namespace fsdpd
