#include "fsdp/optimizer/sharded_params.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "base/check.h"
#include "base/parallel_for.h"
#include "fsdp/kernels/fill_normals.h"
#include "fsdp/optimizer/fp8_moments.h"
#include "fsdp/torch/nf4.h"
#include "fsdp/torch/scalar_type.h"
#include "fsdp/torch/serial_copy.h"
#include "fsdp/torch/torch_status.h"

namespace fsdpd {
namespace {

// Large enough to amortize a call; the buffers of all threads are small next to a unit.
constexpr int64_t kChunkElements = 1 << 20;

struct Chunk {
  int bucket = 0;
  int param = 0;
  std::vector<ElementRun> runs;  // In the whole parameter.
  int64_t main_begin = 0;
};

int64_t SliceOf(const Bucket& bucket, const MeshPosition& position) {
  return position.IndexIn(bucket.groups.slices);
}

at::Tensor Dequantized(const at::Tensor& blocks) {
  at::Tensor numbers = at::empty({blocks.numel() / kNf4BlockBytes * kNf4Block});
  DequantizeNf4(blocks.cpu(), numbers);
  return numbers;
}

// A tensor-parallel shard consists of runs of equal length, so the first one describes all.
kernels::TensorShard KernelSlice(const ParamSlot& slot, int64_t slice) {
  const std::vector<ElementRun> runs = FullRuns(slot.shape, slot.partition, slice, 0, slot.elements);
  return {runs.empty() ? 1 : runs.front().elements, slot.partition.parts, slice};
}

// The blocks of main parameters in NF4.
at::Tensor BlocksOf(const BucketShard& shard, int64_t begin, int64_t elements) {
  return shard.main.narrow(0, Nf4Bytes(begin), Nf4Bytes(elements));
}

void DrawNf4(kernels::FillNormalsArgs args, const at::Tensor& blocks) {
  const int64_t end = args.begin + args.elements;
  const at::Tensor numbers =
      at::empty({std::min(args.elements, kChunkElements)}, blocks.options().dtype(at::kFloat));
  args.type = DType::kFp32;
  args.values = numbers.mutable_data_ptr();
  for (int64_t done = 0; args.begin < end; done += args.elements, args.begin += args.elements) {
    args.elements = std::min(kChunkElements, end - args.begin);
    kernels::FillNormals(args, kernels::CurrentStream(blocks.get_device()));
    QuantizeNf4(numbers.narrow(0, 0, args.elements),
                blocks.narrow(0, Nf4Bytes(done), Nf4Bytes(args.elements)));
  }
}

// Draws the piece in place with a kernel. Returns false if it must be drawn on the CPU.
bool DrawOnDevice(const Bucket& bucket, int64_t slice, const BucketPiece& piece,
                  const InitialNumbers& numbers, const BucketShard& shard) {
  const at::Tensor& stored = shard.stored();
  const bool is_split = shard.split.defined();
  const bool on_host = !stored.is_cuda() || (is_split && !shard.split.low.is_cuda());
  if (!numbers || on_host) return false;
  const ParamSlot& slot = bucket.params[piece.slot];
  const auto of = numbers(bucket.unit, slot.param);
  if (!of.has_value()) return false;
  const c10::DeviceGuard guard(stored.device());
  kernels::FillNormalsArgs args = {};
  args.numbers = *of;
  args.slice = KernelSlice(slot, slice);
  args.begin = piece.param_begin;
  args.elements = piece.elements;
  if (bucket.in_nf4) {
    DrawNf4(args, BlocksOf(shard, piece.range_begin, piece.elements));
    return true;
  }
  args.values = static_cast<char*>(stored.mutable_data_ptr()) + piece.range_begin * stored.element_size();
  args.type = DTypeOf(stored.scalar_type());
  if (is_split) args.low = static_cast<uint16_t*>(shard.split.low.mutable_data_ptr()) + piece.range_begin;
  kernels::FillNormals(args, kernels::CurrentStream(stored.get_device()));
  return true;
}

void AddChunks(const Layout& layout, int bucket, int64_t slice, const BucketPiece& piece,
               std::vector<Chunk>* chunks) {
  const ParamSlot& slot = layout.buckets[bucket].params[piece.slot];
  for (int64_t done = 0; done < piece.elements; done += kChunkElements) {
    chunks->push_back({bucket, slot.param,
                       FullRuns(slot.shape, slot.partition, slice, piece.param_begin + done,
                                std::min(kChunkElements, piece.elements - done)),
                       piece.range_begin + done});
  }
}

void Fill(const Chunk& chunk, int unit, bool in_nf4, const InitialValues& initial, const BucketShard& shard) {
  const at::NoGradGuard no_grad;  // The mode is thread-local.
  int64_t begin = chunk.main_begin;
  for (const ElementRun& run : chunk.runs) {
    const at::Tensor values = initial(unit, chunk.param, run.begin, run.elements);
    FSDPD_CHECK(values.scalar_type() == at::kFloat && values.numel() == run.elements);
    if (shard.split.defined()) {
      shard.split.Write(begin, values);
    } else if (in_nf4) {
      const at::Tensor blocks = at::empty({Nf4Bytes(run.elements)}, at::kByte);
      QuantizeNf4(values.view({-1}).contiguous(), blocks);
      SerialCopy(blocks, BlocksOf(shard, begin, run.elements));
    } else {
      SerialCopy(SerialCast(values.view({-1}), shard.main.scalar_type()),
                 shard.main.narrow(0, begin, run.elements));
    }
    begin += run.elements;
  }
}

}  // namespace

absl::StatusOr<ShardedParams> ShardedParams::Make(const Spec& spec, const Layout& layout,
                                                  const MeshPosition& position, at::Device device,
                                                  const InitialValues& initial,
                                                  const InitialNumbers& numbers) {
  ShardedParams params(layout, position);
  FSDPD_RETURN_IF_ERROR(params.AllocateHostCopies(spec.device));
  const absl::Status status = CatchTorch([&] {
    const at::TensorOptions options = at::TensorOptions().device(device);
    params.grad_shards_.resize(layout.buckets.size());
    for (size_t b = 0; b < layout.buckets.size(); ++b)
      params.buckets_.push_back(params.MakeShard(spec, static_cast<int>(b), device));
    std::vector<Chunk> chunks;  // Those that are not drawn on the device.
    for (size_t b = 0; b < layout.buckets.size(); ++b) {
      const Bucket& bucket = layout.buckets[b];
      const int64_t slice = SliceOf(bucket, position);
      for (const BucketPiece& piece : PiecesOf(bucket, MainRange(bucket, position))) {
        if (!DrawOnDevice(bucket, slice, piece, numbers, params.buckets_[b]))
          AddChunks(layout, static_cast<int>(b), slice, piece, &chunks);
      }
    }
    FSDPD_RETURN_IF_ERROR(ParallelFor(chunks.size(), at::get_num_threads(), [&](size_t c) {
      return CatchTorch([&] {
        const Bucket& bucket = layout.buckets[chunks[c].bucket];
        Fill(chunks[c], bucket.unit, bucket.in_nf4, initial, params.buckets_[chunks[c].bucket]);
        return absl::OkStatus();
      });
    }));
    for (size_t b = 0; b < layout.buckets.size(); ++b) {
      if (!layout.buckets[b].trainable || layout.buckets[b].groups.shard == Group::kSelf) continue;
      params.BindGradShard(static_cast<int>(b),
                           at::zeros({layout.buckets[b].shard_elements},
                                     options.dtype(ScalarTypeOf(layout.buckets[b].types.gradient))));
    }
    if (device.is_cuda()) {  // The default stream is not ordered with the lanes.
      c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
    }
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return params;
}

// Fresh host memory is zero.
absl::Status ShardedParams::AllocateHostCopies(DeviceKind device) {
  int64_t bytes = 0;
  for (const Bucket& bucket : layout_->buckets) bytes += bucket.offloaded_bytes();
  FSDPD_ASSIGN_OR_RETURN(host_, HostArena::Make(bytes, device, "parts of the optimizer's state"));
  int64_t offset = 0;
  for (const Bucket& bucket : layout_->buckets) {
    host_copies_.emplace_back();
    if (bucket.offloaded.empty()) continue;
    host_copies_.back() = at::from_blob(host_->data() + offset, {bucket.offloaded_bytes()},
                                        at::TensorOptions().dtype(at::kByte));
    offset += bucket.offloaded_bytes();
  }
  return absl::OkStatus();
}

BucketShard ShardedParams::MakeShard(const Spec& spec, int bucket, at::Device device) const {
  const Bucket& of = layout_->buckets[bucket];
  const auto zeros = [&](at::ScalarType type) {
    return at::zeros({of.main_elements}, at::TensorOptions().dtype(type).device(device));
  };
  BucketShard shard;
  if (of.types.split_fp32) {
    shard.split.high = zeros(at::kBFloat16);
  } else {
    shard.main = of.in_nf4 ? at::zeros({of.main_bytes()}, at::TensorOptions().dtype(at::kByte).device(device))
                           : zeros(ScalarTypeOf(of.types.main));
  }
  shard.moments.resize(of.trainable ? spec.optimizer.moments() : 0);
  if (!of.offloaded.empty()) {
    BindState(of, host_copies_[bucket], &shard);
    return shard;
  }
  if (of.types.split_fp32) shard.split.low = zeros(at::kShort);
  for (at::Tensor& moment : shard.moments) moment = zeros(MomentTypeOf(of.types.moment));
  return shard;
}

void ShardedParams::BindState(const Bucket& bucket, const at::Tensor& state, BucketShard* shard) {
  for (const StatePart& part : bucket.offloaded) {
    const bool low = part.moment < 0;
    (low ? shard->split.low : shard->moments[part.moment]) =
        state.narrow(0, part.offset, part.bytes).view(low ? at::kShort : MomentTypeOf(bucket.types.moment));
  }
}

BucketShard ShardedParams::Staged(int bucket, const at::Tensor& state) const {
  BucketShard staged = buckets_[bucket];
  BindState(layout_->buckets[bucket], state, &staged);
  return staged;
}

void ShardedParams::BindGradShard(int bucket, const at::Tensor& grad_shard) {
  const Bucket& layout = layout_->buckets[bucket];
  FSDPD_CHECK(layout.trainable && grad_shard.numel() == layout.shard_elements);
  grad_shards_[bucket] = grad_shard;
  const int64_t begin = MainRange(layout, position_).begin - ShardRange(layout, position_).begin;
  buckets_[bucket].grad = grad_shard.narrow(0, begin, layout.main_elements);
}

void ShardedParams::CopyTo(std::vector<float>* model,
                           const std::vector<std::vector<int64_t>>& first_elements) const {
  FSDPD_CHECK(static_cast<int64_t>(model->size()) >= layout_->elements());
  const std::vector<std::vector<int64_t>> offsets = SlotOffsets(*layout_, first_elements);
  for (size_t b = 0; b < layout_->buckets.size(); ++b) {
    const Bucket& bucket = layout_->buckets[b];
    if (!HasFirstCopy(bucket, position_)) continue;
    const BucketShard& shard = buckets_[b];
    const at::Tensor main = bucket.in_nf4           ? Dequantized(shard.main)
                            : shard.split.defined() ? shard.split.Read()
                                                    : shard.main.cpu().to(at::kFloat);
    for (const BucketPiece& piece : PiecesOf(bucket, MainRange(bucket, position_))) {
      const ParamSlot& slot = bucket.params[piece.slot];
      const float* from = main.const_data_ptr<float>() + piece.range_begin;
      for (const ElementRun& run : FullRuns(slot.shape, slot.partition, SliceOf(bucket, position_),
                                            piece.param_begin, piece.elements)) {
        std::copy_n(from, run.elements, model->data() + offsets[b][piece.slot] + run.begin);
        from += run.elements;
      }
    }
  }
}

std::vector<std::vector<int64_t>> SlotOffsets(const Layout& layout,
                                              const std::vector<std::vector<int64_t>>& first_elements) {
  FSDPD_CHECK(first_elements.empty() || first_elements.size() == layout.units.size());
  std::vector<std::vector<int64_t>> offsets(layout.buckets.size());
  int64_t next = 0;
  for (size_t u = 0; u < layout.units.size(); ++u) {
    for (size_t p = 0; p < layout.units[u].params.size(); ++p) {
      const ParamPlace& place = layout.units[u].params[p];
      if (!first_elements.empty()) next = first_elements[u][p];
      const Bucket& bucket = layout.buckets[place.bucket];
      offsets[place.bucket].resize(bucket.params.size());
      offsets[place.bucket][place.slot] = next;
      next += bucket.params[place.slot].full_elements();
    }
  }
  return offsets;
}

}  // namespace fsdpd
