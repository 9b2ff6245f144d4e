// Sharded parameters: what a rank owns of the model for the whole job, by bucket: its shard of the main
// parameters, of the optimizer's moments, and of the gradient. Padding is always zero. Frozen buckets have
// main parameters only.
//
// Initial values are drawn for the rank's own shards only: by a kernel if they are on a GPU, otherwise in
// chunks on all cores. No rank ever holds a whole parameter that is sharded. Values depend only on seed,
// names and element indexes, so every device, world size and strategy starts from the same model.
//
// State that the job offloads (Bucket::offloaded) is in host memory, one contiguous block per bucket. The
// optimizer works on a staged copy that the program fetches to the device and offloads again
// (fsdp/plan/program).
//
// Not thread-safe; the program's dependencies order accesses from lanes. Errors: RESOURCE_EXHAUSTED if device
// or host memory is too small.
#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "fsdp/kernels/normal_numbers.h"
#include "fsdp/memory/host_arena.h"
#include "fsdp/optimizer/split_fp32.h"
#include "fsdp/plan/layout/layout.h"

namespace fsdpd {

// The rank's main shard of one bucket. Offloaded parts are views of the host copy.
struct BucketShard {
  // [main_elements] of BucketTypes::main, or the bytes of NF4; undefined with split fp32.
  at::Tensor main;
  std::vector<at::Tensor> moments;  // Each [main_elements] of MomentTypeOf(BucketTypes::moment).
  // [main_elements]: view of the gradient shard. Undefined in frozen buckets, and until bound.
  at::Tensor grad;
  // Main parameters if BucketTypes::split_fp32: AdamW on CUDA reads and writes them.
  SplitFp32 split = {};

  // Source of a gather, converted to BucketTypes::gathered by a cast, from or to fewer bits, or by a plain
  // copy.
  const at::Tensor& stored() const { return split.defined() ? split.high : main; }
};

// Returns elements [begin, begin + elements) of a parameter (unsharded, even with tensor parallelism), flat
// fp32 on the CPU. Called from several threads.
using InitialValues = std::function<at::Tensor(int unit, int param, int64_t begin, int64_t elements)>;

// The same values as a random stream that a kernel can draw; nullopt: only InitialValues has them.
using InitialNumbers = std::function<std::optional<kernels::NormalNumbers>(int unit, int param)>;

class ShardedParams {
 public:
  // On CUDA, fp32 parameters for which `numbers` returns a stream are drawn on the device.
  static absl::StatusOr<ShardedParams> Make(const Spec& spec, const Layout& layout,
                                            const MeshPosition& position, at::Device device,
                                            const InitialValues& initial, const InitialNumbers& numbers = {});

  const BucketShard& bucket(int index) const { return buckets_[index]; }
  // Offloaded state in host memory: flat, Bucket::offloaded_bytes(). Undefined if nothing is offloaded.
  const at::Tensor& host_copy(int bucket) const { return host_copies_[bucket]; }
  // The bucket with its offloaded parts replaced by views of `state`, a device buffer of the same size.
  BucketShard Staged(int bucket, const at::Tensor& state) const;
  int size() const { return static_cast<int>(buckets_.size()); }

  // Output of reductions: [shard_elements] in BucketTypes::gradient. With no_shard it is the bucket's whole
  // reduce buffer, and undefined until bound. Undefined in frozen buckets.
  const at::Tensor& grad_shard(int bucket) const { return grad_shards_[bucket]; }
  void BindGradShard(int bucket, const at::Tensor& grad_shard);

  // Writes this rank's parameters into `model`, which holds all parameters in the order of SlotOffsets, fp32.
  // Replicated shards are written by the first rank that has them.
  void CopyTo(std::vector<float>* model, const std::vector<std::vector<int64_t>>& first_elements = {}) const;

 private:
  ShardedParams(const Layout& layout, const MeshPosition& position) : layout_(&layout), position_(position) {}

  // Makes the offloaded parts of `shard` views of `state`.
  static void BindState(const Bucket& bucket, const at::Tensor& state, BucketShard* shard);
  absl::Status AllocateHostCopies(DeviceKind device);
  BucketShard MakeShard(const Spec& spec, int bucket, at::Device device) const;

  const Layout* layout_;  // Owned by the plan, which must outlive this object.
  MeshPosition position_;
  std::unique_ptr<HostArena> host_;
  std::vector<at::Tensor> host_copies_;
  std::vector<BucketShard> buckets_;
  std::vector<at::Tensor> grad_shards_;
};

// Offsets of parameters in the flat model (units in order, each unit's whole parameters in the order of its
// facts), by bucket and slot. `first_elements`: offset by unit and parameter, if the layout is that of one
// pipeline stage; empty: the layout is the whole model.
std::vector<std::vector<int64_t>> SlotOffsets(const Layout& layout,
                                              const std::vector<std::vector<int64_t>>& first_elements = {});

}  // namespace fsdpd
