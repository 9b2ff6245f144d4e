#include "fsdp/comm/nccl_communicator.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <absl/strings/str_format.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "fsdp/comm/holds_on_all_ranks.h"
#include "fsdp/kernels/sum_parts.h"
#include "fsdp/torch/cuda_device.h"
#include "fsdp/torch/torch_status.h"

namespace fsdpd {
namespace {

// Polling interval of the stream in Await(): shorter than an all-reduce over a network.
constexpr std::chrono::microseconds kPoll(20);
constexpr const char* kWindowSwitches[] = {"NCCL_WIN_ENABLE", "NCCL_CUMEM_ENABLE"};

absl::Status StatusOfNccl(ncclResult_t result, ncclComm_t communicator, const std::string& where) {
  if (result == ncclSuccess) return absl::OkStatus();
  const std::string message =
      absl::StrFormat("%s: %s: %s", where, ncclGetErrorString(result), ncclGetLastError(communicator));
  const bool callers_mistake = result == ncclInvalidArgument || result == ncclInvalidUsage;
  return callers_mistake ? absl::InternalError(message) : absl::UnavailableError(message);
}

ncclDataType_t TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFp32:
      return ncclFloat32;
    case DType::kBf16:
      return ncclBfloat16;
    case DType::kFp16:
      return ncclFloat16;
    case DType::kFp8:
      return ncclUint8;
  }
  FSDPD_CHECK(false);
}

// NCCL reads these on each rank and does not compare them between ranks.
bool EnvAllowsWindows() {
  return std::all_of(std::begin(kWindowSwitches), std::end(kWindowSwitches), [](const char* name) {
    const char* const value = std::getenv(name);
    return value == nullptr || *value == '\0' || std::strtoll(value, nullptr, 0) != 0;
  });
}

class NcclCommunicator : public Communicator {
 public:
  // Takes ownership of `communicator`. `token`: one float on the device, for Barrier.
  NcclCommunicator(ncclComm_t communicator, const CommunicatorOptions& options, at::Tensor token)
      : communicator_(communicator), options_(options), token_(std::move(token)) {}

  ~NcclCommunicator() override {
    // Errors were already returned by the failed operations.
    if (aborted_) {
      ncclCommAbort(communicator_);
    } else {
      for (const Window& window : windows_) ncclCommWindowDeregister(communicator_, window.handle);
      ncclCommDestroy(communicator_);
    }
  }

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }

  absl::Status AllGather(void* buffer, int64_t count, DType dtype) override {
    FSDPD_RETURN_IF_ERROR(CheckUsable("all_gather"));
    char* own = static_cast<char*>(buffer) + rank() * count * BytesOf(dtype);
    return Enqueued("all_gather", ncclAllGather(own, buffer, count, TypeOf(dtype), communicator_, Stream()));
  }

  // NCCL would add bf16 in bf16, once per hop. So a narrow wire type only carries the parts, and they are
  // summed here in fp32.
  absl::Status ReduceScatter(void* in, void* scratch, float* out, int64_t count, DType wire) override {
    constexpr const char* kOperation = "reduce_scatter";
    FSDPD_RETURN_IF_ERROR(CheckUsable(kOperation));
    if (wire == DType::kFp32) {
      return Enqueued(kOperation,
                      ncclReduceScatter(in, out, count, ncclFloat32, ncclSum, communicator_, Stream()));
    }
    FSDPD_RETURN_IF_ERROR(ExchangeParts(kOperation, in, scratch, count, wire));
    return SumParts(in, scratch, out, count, wire);
  }

  absl::Status AllReduce(float* buffer, int64_t count) override {
    FSDPD_RETURN_IF_ERROR(CheckUsable("all_reduce"));
    return Enqueued("all_reduce",
                    ncclAllReduce(buffer, buffer, count, ncclFloat32, ncclSum, communicator_, Stream()));
  }

  absl::Status AllToAll(const void* in, void* out, int64_t count, DType dtype) override {
    FSDPD_RETURN_IF_ERROR(CheckUsable("all_to_all"));
    return ExchangeParts("all_to_all", in, out, count, dtype);
  }

  absl::Status Send(const void* buffer, int64_t count, DType dtype, int to) override {
    FSDPD_RETURN_IF_ERROR(CheckUsable("send"));
    return Enqueued("send", ncclSend(buffer, count, TypeOf(dtype), to, communicator_, Stream()));
  }

  absl::Status Receive(void* buffer, int64_t count, DType dtype, int from) override {
    FSDPD_RETURN_IF_ERROR(CheckUsable("receive"));
    return Enqueued("receive", ncclRecv(buffer, count, TypeOf(dtype), from, communicator_, Stream()));
  }

  absl::Status Broadcast(void* buffer, int64_t count, DType dtype, int root) override {
    FSDPD_CHECK(root >= 0 && root < size());
    FSDPD_RETURN_IF_ERROR(CheckUsable("broadcast"));
    return Enqueued("broadcast",
                    ncclBroadcast(buffer, buffer, count, TypeOf(dtype), root, communicator_, Stream()));
  }

  absl::Status Barrier() override {
    FSDPD_RETURN_IF_ERROR(CheckUsable("barrier"));
    float* token = token_.mutable_data_ptr<float>();
    FSDPD_RETURN_IF_ERROR(
        Enqueued("barrier", ncclAllReduce(token, token, 1, ncclFloat32, ncclSum, communicator_, Stream())));
    return Await();
  }

  // Polls instead of cudaStreamSynchronize: a kernel that waits for a lost peer ends only after the error was
  // seen and the communicator aborted.
  absl::Status Await() override {
    while (true) {
      const cudaError_t state = cudaStreamQuery(Stream());
      FSDPD_RETURN_IF_ERROR(CheckUsable("a wait"));
      if (state == cudaSuccess) return absl::OkStatus();
      if (state != cudaErrorNotReady) {
        return absl::InternalError(Where("a wait") + ": " + cudaGetErrorString(state));
      }
      const absl::Status health = Health();
      if (!health.ok()) {
        Abort();
        return health;
      }
      std::this_thread::sleep_for(kPoll);
    }
  }

  // Both ends of a copy must be in a window. A null handle means that this group cannot have one (its ranks
  // are on several hosts, or their GPUs lack peer access), and kernels move the data. The ranks agree twice:
  // a rank that does not want a window would leave the others blocked in the registration, and one whose
  // registration failed would leave them blocked in the first collective.
  absl::Status Register(std::shared_ptr<void> memory, int64_t bytes) override {
    FSDPD_RETURN_IF_ERROR(CheckUsable("register"));
    const bool wanted = options_.windows && EnvAllowsWindows();
    FSDPD_ASSIGN_OR_RETURN(const bool all_want, HoldsOnAllRanks(this, wanted, token_));
    ncclWindow_t handle = nullptr;
    if (all_want) {
      FSDPD_ASSIGN_OR_RETURN(handle, MakeWindowHandle(memory.get(), bytes));
    }
    FSDPD_ASSIGN_OR_RETURN(const bool all_have, HoldsOnAllRanks(this, handle != nullptr, token_));
    if (handle != nullptr && !all_have) {
      FSDPD_RETURN_IF_ERROR(
          StatusOfNccl(ncclCommWindowDeregister(communicator_, handle), communicator_, Where("deregister")));
      handle = nullptr;
    }
    if (rank() == 0) {
      LogInfo("selected the data path of a group group=%s ranks=%d data_path=%s", options_.name, size(),
              handle == nullptr ? "kernels" : "copy_engines");
    }
    if (handle != nullptr) windows_.push_back({handle, std::move(memory)});
    return absl::OkStatus();
  }

  bool HasCopyEngines() const override { return !windows_.empty(); }

  absl::Status Health() const override {
    FSDPD_RETURN_IF_ERROR(CheckUsable("a step"));
    ncclResult_t behind = ncclSuccess;
    ncclCommGetAsyncError(communicator_, &behind);
    if (behind == ncclSuccess || behind == ncclInProgress) return absl::OkStatus();
    return StatusOfNccl(behind, communicator_, Where("a step"));
  }

  void Abort() override {
    if (aborted_.exchange(true)) return;
    // Revoke instead of abort: it stops the kernels but keeps the communicator valid for a thread that is in
    // a call.
    ncclCommRevoke(communicator_, NCCL_REVOKE_DEFAULT);
  }

 private:
  struct Window {
    ncclWindow_t handle;
    std::shared_ptr<void> memory;
  };

  cudaStream_t Stream() const {
    return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(options_.device_index)).stream();
  }

  // Null if the group cannot have a window.
  absl::StatusOr<ncclWindow_t> MakeWindowHandle(void* memory, int64_t bytes) {
    ncclWindow_t handle = nullptr;
    const ncclResult_t result =
        ncclCommWindowRegister(communicator_, memory, bytes, &handle, NCCL_WIN_COLL_SYMMETRIC);
    const bool unsupported = result == ncclInvalidUsage || result == ncclInvalidArgument;
    if (!unsupported) FSDPD_RETURN_IF_ERROR(StatusOfNccl(result, communicator_, Where("register")));
    return handle;
  }

  std::string Where(const char* operation) const {
    return absl::StrFormat("%s of group '%s' on rank %d of %d", operation, options_.name, rank(), size());
  }

  absl::Status CheckUsable(const char* operation) const {
    if (!aborted_) return absl::OkStatus();
    return absl::UnavailableError(Where(operation) + ": the group was aborted");
  }

  // After Abort, returns an abort error instead of NCCL's.
  absl::Status Enqueued(const char* operation, ncclResult_t result) {
    FSDPD_RETURN_IF_ERROR(CheckUsable(operation));
    return StatusOfNccl(result, communicator_, Where(operation));
  }

  // Sends part r of `in` to rank r and receives part r of `out` from it. Copy engines only work with NCCL's
  // all-to-all, which also copies the rank's own part.
  absl::Status ExchangeParts(const char* operation, const void* in, void* out, int64_t count, DType dtype) {
    if (size() == 1) return absl::OkStatus();  // The caller reads its own part in place.
    if (!windows_.empty()) {
      return Enqueued(operation, ncclAlltoAll(in, out, count, TypeOf(dtype), communicator_, Stream()));
    }
    ncclResult_t result = ncclGroupStart();
    for (int r = 0; r < size() && result == ncclSuccess; ++r) {
      if (r == rank()) continue;
      const int64_t begin = r * count * BytesOf(dtype);
      result =
          ncclSend(static_cast<const char*>(in) + begin, count, TypeOf(dtype), r, communicator_, Stream());
      if (result != ncclSuccess) break;
      result = ncclRecv(static_cast<char*>(out) + begin, count, TypeOf(dtype), r, communicator_, Stream());
    }
    const ncclResult_t ended = ncclGroupEnd();
    return Enqueued(operation, result == ncclSuccess ? ended : result);
  }

  // One kernel: reads each part once (the own part from `in`), adds in fp32, writes fp32.
  absl::Status SumParts(const void* in, const void* parts, float* out, int64_t count, DType type) const {
    return CatchTorch([&] {
      kernels::SumPartsArgs args = {};
      args.parts = parts;
      args.own = static_cast<const char*>(in) + rank() * count * BytesOf(type);
      args.rank = rank();
      args.sum = out;
      args.count = count;
      args.ranks = size();
      args.type = type;
      args.sum_type = DType::kFp32;
      kernels::SumParts(args, Stream());
      return absl::OkStatus();
    });
  }

  const ncclComm_t communicator_;
  const CommunicatorOptions options_;
  const at::Tensor token_;
  std::vector<Window> windows_;
  std::atomic<bool> aborted_{false};
};

// Rank 0 creates the id with which the others join.
absl::StatusOr<ncclUniqueId> ShareId(const CommunicatorOptions& options, Store* store) {
  const std::string key = options.name + "/nccl_id";
  ncclUniqueId id;
  if (options.rank == 0) {
    FSDPD_RETURN_IF_ERROR(
        StatusOfNccl(ncclGetUniqueId(&id), nullptr, "creating the NCCL id of group " + options.name));
    FSDPD_RETURN_IF_ERROR(store->Set(key, std::string(id.internal, sizeof(id.internal))));
    return id;
  }
  FSDPD_ASSIGN_OR_RETURN(const std::string bytes, store->Get(key, options.rendezvous_timeout));
  if (bytes.size() != sizeof(id.internal)) {
    return absl::InternalError(absl::StrFormat("key %s: invalid NCCL id (got %d bytes, want %d)", key,
                                               bytes.size(), sizeof(id.internal)));
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
  // Prefer copy engines over multiprocessors if both ends are registered; NCCL decides otherwise.
  config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
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
