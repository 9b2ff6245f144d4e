// What a rank owns of the model for the whole job, by bucket: its piece of the main parameters, of the
// optimizer's moments, and of the gradient. Padding is zero and stays zero. Frozen buckets have main
// parameters only.
//
// Initial values are drawn for the rank's own pieces only: by a kernel where the pieces are on a GPU, else a
// chunk at a time and over the process's cores. No rank ever holds a whole parameter that it shares. Values
// depend on seed, names and element numbers only: every device, world size and strategy starts from the same
// model.
//
// What a job offloads of it (Bucket::offloaded) lies in host memory, all of a bucket's in one piece. The
// optimizer works on copies of that, which somebody brings to the device and back (fsdp/plan/program).
//
// Thread safety: none; the lanes order who touches what. Errors: RESOURCE_EXHAUSTED when the device or the
// host is too small.
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

// The own main piece of one bucket: what the optimizer works on, or, where parts are offloaded, comes from.
struct BucketShard {
  at::Tensor main;  // [main_elements] fp32; undefined where there are halves.
  std::vector<at::Tensor>
      moments;  // As many as the optimizer has, each [main_elements] of MomentTypeOf(BucketTypes::moment).
  at::Tensor
      grad;  // [main_elements]: a view of the gradient shard. Undefined in frozen buckets, and until bound.
  SplitFp32 halves =
      {};  // Of main, where BucketTypes::split_fp32 says so: what AdamW reads and writes on CUDA.

  // What a gather sends once it has BucketTypes::gathered: a cast, a rounding, or a copy of what has it
  // already.
  const at::Tensor& stored() const { return halves.defined() ? halves.high : main; }
};

// Elements [begin, begin + elements) of a parameter, of a cut one the whole's; flat fp32 on the CPU. Called
// from several threads.
using InitialValues = std::function<at::Tensor(int unit, int param, int64_t begin, int64_t elements)>;

// The same values in a form that a device can draw; nullopt: only InitialValues has them.
using InitialNumbers = std::function<std::optional<kernels::NormalNumbers>(int unit, int param)>;

class ShardedParams {
 public:
  // On CUDA, parameters that `numbers` knows are drawn on the device; empty: it knows none.
  static absl::StatusOr<ShardedParams> Make(const Spec& spec, const Layout& layout,
                                            const MeshPosition& position, at::Device device,
                                            const InitialValues& initial, const InitialNumbers& numbers = {});

  const BucketShard& bucket(int index) const { return buckets_[index]; }
  // What of it lies in host memory: flat bytes, Bucket::offloaded_bytes(). Undefined where nothing does.
  const at::Tensor& home(int bucket) const { return homes_[bucket]; }
  // The bucket with what lies in host memory where `state` is, which has as many bytes, of the device.
  BucketShard Staged(int bucket, const at::Tensor& state) const;
  int size() const { return static_cast<int>(buckets_.size()); }

  // Where reductions end: [shard_elements] in BucketTypes::gradient. With no_shard undefined until bound, and
  // then the bucket's whole reduce buffer. Undefined in frozen buckets.
  const at::Tensor& grad_shard(int bucket) const { return grad_shards_[bucket]; }
  void BindGradShard(int bucket, const at::Tensor& grad_shard);

  // Writes this rank's pieces into `model`: all parameters in the order of SlotOffsets, fp32. A piece that
  // several ranks have is written by the first of them.
  void CopyTo(std::vector<float>* model, const std::vector<std::vector<int64_t>>& first_elements = {}) const;

 private:
  ShardedParams(const Layout& layout, const MeshPosition& position) : layout_(&layout), position_(position) {}

  // Of the shard, what the bucket offloads becomes views of these bytes.
  static void BindState(const Bucket& bucket, const at::Tensor& state, BucketShard* shard);
  absl::Status MakeHomes(DeviceKind device);
  BucketShard MakeShard(const Spec& spec, int bucket, at::Device device) const;

  const Layout* layout_;  // The plan's, which outlives this.
  MeshPosition position_;
  std::unique_ptr<HostArena> host_;
  std::vector<at::Tensor> homes_;
  std::vector<BucketShard> buckets_;
  std::vector<at::Tensor> grad_shards_;
};

// The model as one row of numbers: units in order, each unit's parameters, whole, in its facts' order. By
// bucket and slot, where a parameter begins. `first_elements`: by unit and parameter, where the layout's are
// some of the model's; empty: they are all.
std::vector<std::vector<int64_t>> SlotOffsets(const Layout& layout,
                                              const std::vector<std::vector<int64_t>>& first_elements = {});

}  // namespace fsdpd
