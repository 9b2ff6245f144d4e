#include "fsdp/comm/nccl_communicator.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <absl/strings/str_format.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/check.h"
#include "fsdp/comm/cuda_device.h"
#include "fsdp/memory/torch_status.h"

namespace fsdpd {
namespace {

// Between two looks of Barrier() at the stream: shorter than an all-reduce over a network takes.
constexpr std::chrono::microseconds kPoll(20);

absl::Status StatusOfNccl(ncclResult_t result, ncclComm_t communicator, const std::string& where) {
  if (result == ncclSuccess) return absl::OkStatus();
  const std::string message =
      absl::StrFormat("%s: %s: %s", where, ncclGetErrorString(result), ncclGetLastError(communicator));
  const bool callers_mistake = result == ncclInvalidArgument || result == ncclInvalidUsage;
  return callers_mistake ? absl::InternalError(message) : absl::UnavailableError(message);
}

class NcclCommunicator : public Communicator {
 public:
  // Takes over `communicator`. `token`: one float on the device, for Barrier.
  NcclCommunicator(ncclComm_t communicator, const CommunicatorOptions& options, at::Tensor token)
      : communicator_(communicator), options_(options), token_(std::move(token)) {}

  ~NcclCommunicator() override {
    // Both may only fail by what the aborted operations said already.
    if (aborted_) {
      ncclCommAbort(communicator_);
    } else {
      ncclCommDestroy(communicator_);
    }
  }

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }

  absl::Status AllGather(void* buffer, int64_t count, DType dtype) override {
    FSDPD_RETURN_IF_ERROR(CheckUsable("all_gather"));
    char* own = static_cast<char*>(buffer) + rank() * count * BytesOf(dtype);
    const ncclDataType_t type = dtype == DType::kFp32 ? ncclFloat32 : ncclBfloat16;
    return Enqueued("all_gather", ncclAllGather(own, buffer, count, type, communicator_, Stream()));
  }

  absl::Status ReduceScatter(float* in, float* out, int64_t count) override {
    FSDPD_RETURN_IF_ERROR(CheckUsable("reduce_scatter"));
    return Enqueued("reduce_scatter",
                    ncclReduceScatter(in, out, count, ncclFloat32, ncclSum, communicator_, Stream()));
  }

  absl::Status AllReduce(float* buffer, int64_t count) override {
    FSDPD_RETURN_IF_ERROR(CheckUsable("all_reduce"));
    return Enqueued("all_reduce",
                    ncclAllReduce(buffer, buffer, count, ncclFloat32, ncclSum, communicator_, Stream()));
  }

  absl::Status Barrier() override {
    FSDPD_RETURN_IF_ERROR(CheckUsable("barrier"));
    float* token = token_.mutable_data_ptr<float>();
    FSDPD_RETURN_IF_ERROR(
        Enqueued("barrier", ncclAllReduce(token, token, 1, ncclFloat32, ncclSum, communicator_, Stream())));
    return AwaitStream();
  }

  void Abort() override {
    if (aborted_.exchange(true)) return;
    // Revoke, not abort: it stops the kernels but leaves the communicator to a thread that is in a call now.
    ncclCommRevoke(communicator_, NCCL_REVOKE_DEFAULT);
  }

 private:
  cudaStream_t Stream() const {
    return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(options_.device_index)).stream();
  }

  std::string Where(const char* operation) const {
    return absl::StrFormat("%s of group '%s' on rank %d of %d", operation, options_.name, rank(), size());
  }

  absl::Status CheckUsable(const char* operation) const {
    if (!aborted_) return absl::OkStatus();
    return absl::UnavailableError(Where(operation) + ": the group was aborted");
  }

  // What was aborted fails as aborted, whatever NCCL calls it.
  absl::Status Enqueued(const char* operation, ncclResult_t result) {
    FSDPD_RETURN_IF_ERROR(CheckUsable(operation));
    return StatusOfNccl(result, communicator_, Where(operation));
  }

  // Not cudaStreamSynchronize: a kernel that waits for a lost peer ends only when somebody sees the error.
  absl::Status AwaitStream() {
    while (true) {
      const cudaError_t state = cudaStreamQuery(Stream());
      FSDPD_RETURN_IF_ERROR(CheckUsable("barrier"));
      if (state == cudaSuccess) return absl::OkStatus();
      if (state != cudaErrorNotReady) {
        return absl::InternalError(Where("barrier") + ": " + cudaGetErrorString(state));
      }
      ncclResult_t behind = ncclSuccess;
      ncclCommGetAsyncError(communicator_, &behind);
      if (behind != ncclSuccess && behind != ncclInProgress) {
        const absl::Status status = StatusOfNccl(behind, communicator_, Where("barrier"));
        Abort();
        return status;
      }
      std::this_thread::sleep_for(kPoll);
    }
  }

  const ncclComm_t communicator_;
  const CommunicatorOptions options_;
  const at::Tensor token_;
  std::atomic<bool> aborted_{false};
};

// Rank 0 makes the id that the others join by.
absl::StatusOr<ncclUniqueId> ShareId(const CommunicatorOptions& options, Store* store) {
  const std::string key = options.name + "/nccl_id";
  ncclUniqueId id;
  if (options.rank == 0) {
    FSDPD_RETURN_IF_ERROR(
        StatusOfNccl(ncclGetUniqueId(&id), nullptr, "making the id of group " + options.name));
    FSDPD_RETURN_IF_ERROR(store->Set(key, std::string(id.internal, sizeof(id.internal))));
    return id;
  }
  FSDPD_ASSIGN_OR_RETURN(const std::string bytes, store->Get(key, options.rendezvous_timeout));
  if (bytes.size() != sizeof(id.internal)) {
    return absl::InternalError(
        absl::StrFormat("key %s holds %d bytes, a NCCL id has %d", key, bytes.size(), sizeof(id.internal)));
  }
  std::memcpy(id.internal, bytes.data(), bytes.size());
  return id;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> MakeNcclCommunicator(const CommunicatorOptions& options,
                                                                   Store* store) {
  FSDPD_RETURN_IF_ERROR(SetCudaDevice(options.device_index));
  FSDPD_ASSIGN_OR_RETURN(const ncclUniqueId id, ShareId(options, store));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  ncclComm_t communicator = nullptr;
  FSDPD_RETURN_IF_ERROR(StatusOfNccl(
      ncclCommInitRankConfig(&communicator, options.size, id, options.rank, &config), nullptr,
      absl::StrFormat("joining group '%s' as rank %d of %d", options.name, options.rank, options.size)));
  at::Tensor token;
  const absl::Status status = CatchTorch([&] {
    const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(options.device_index));
    token = at::zeros({1}, at::TensorOptions(at::kFloat).device(device));
    return absl::OkStatus();
  });
  if (!status.ok()) {
    ncclCommAbort(communicator);
    return status;
  }
  return std::make_unique<NcclCommunicator>(communicator, options, std::move(token));
}

}  // namespace fsdpd
