#include "fsdp/engine/base_fingerprint.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <absl/strings/str_cat.h>

#include <algorithm>

#include "base/check.h"
#include "fsdp/checkpoint/names/base_hash.h"
#include "fsdp/torch/nf4.h"
#include "fsdp/torch/torch_status.h"

namespace fsdpd {
namespace {

// One chunk fits in a CPU's cache; a GPU needs fewer launches.
constexpr int64_t kChunkElements = 1 << 18, kChunkOnGpu = 1 << 20;

// The sum of HashOfElement() of stored[0, elements), which are elements `index` of a whole parameter.
uint64_t SumOf(const at::Tensor& stored, const at::Tensor& index, uint64_t name) {
  const at::ScalarType bits = stored.element_size() == 2 ? at::kShort : at::kInt;
  at::Tensor hash = index.mul(static_cast<int64_t>(kHashIndexFactor))
                        .add_(stored.view(bits))
                        .add_(static_cast<int64_t>(name));
  hash.mul_(static_cast<int64_t>(kHashMixFactor));
  hash.bitwise_xor_(hash.bitwise_right_shift(kHashMixShift)).mul_(static_cast<int64_t>(kHashIndexFactor));
  return static_cast<uint64_t>(hash.sum().item<int64_t>());
}

// Indexes in the whole parameter of elements [begin, begin + elements) of a shard (TensorPartition).
at::Tensor IndexesOf(const ParamSlot& slot, int64_t part, int64_t begin, int64_t elements,
                     const at::TensorOptions& options) {
  at::Tensor shard = at::arange(begin, begin + elements, options);
  if (!slot.partition.is_partitioned()) return shard;
  int64_t stretch = 1;
  for (size_t d = slot.partition.dim; d < slot.shape.size(); ++d) stretch *= slot.shape[d];
  const at::Tensor row = shard.div(stretch, "floor");
  return row.mul((slot.partition.parts - 1) * stretch).add_(part * stretch).add_(shard);
}

// As they are hashed: of NF4, what it represents in fp32.
at::Tensor NumbersOf(const Bucket& bucket, const at::Tensor& stored, int64_t begin, int64_t elements) {
  if (!bucket.in_nf4) return stored.narrow(0, begin, elements);
  const at::Tensor numbers = at::empty({elements}, stored.options().dtype(at::kFloat));
  DequantizeNf4(stored.narrow(0, Nf4Bytes(begin), Nf4Bytes(elements)), numbers);
  return numbers;
}

uint64_t SumOf(const Layout& layout, const MeshPosition& position, const ShardedParams& params) {
  const at::NoGradGuard no_grad;
  uint64_t sum = 0;
  for (size_t b = 0; b < layout.buckets.size(); ++b) {
    const Bucket& bucket = layout.buckets[b];
    if (!bucket.of_base || !HasFirstCopy(bucket, position)) continue;
    const at::Tensor& stored = params.bucket(static_cast<int>(b)).main;
    const auto options = at::TensorOptions().dtype(at::kLong).device(stored.device());
    for (const BucketPiece& piece : PiecesOf(bucket, MainRange(bucket, position))) {
      const ParamSlot& slot = bucket.params[piece.slot];
      const std::string name = FullName(layout.units[bucket.unit], slot);
      const uint64_t key = HashOfName(name);
      const int64_t chunk = stored.is_cuda() ? kChunkOnGpu : kChunkElements;
      for (int64_t done = 0; done < piece.elements; done += chunk) {
        const int64_t elements = std::min(chunk, piece.elements - done);
        sum += SumOf(NumbersOf(bucket, stored, piece.range_begin + done, elements),
                     IndexesOf(slot, position.IndexIn(bucket.groups.slices), piece.param_begin + done,
                               elements, options),
                     key);
      }
    }
  }
  return sum;
}

// The sum over all ranks, modulo 2^64. Bytes are summed as fp32, which is exact for up to 2^16 ranks.
absl::Status AddUp(Communicator* all, at::Device device, uint64_t* sum) {
  constexpr int kBytes = sizeof(*sum);
  at::Tensor bytes = at::empty({kBytes}, at::kFloat);
  for (int b = 0; b < kBytes; ++b) bytes[b] = static_cast<float>((*sum >> (8 * b)) & 0xff);
  const at::Tensor sums = bytes.to(device);
  FSDPD_RETURN_IF_ERROR(all->AllReduce(sums.mutable_data_ptr<float>(), kBytes));
  FSDPD_RETURN_IF_ERROR(all->Await());
  *sum = 0;
  for (int b = 0; b < kBytes; ++b) *sum += static_cast<uint64_t>(sums[b].item<float>()) << (8 * b);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<BaseLabel> FingerprintOfBase(const Layout& layout, const MeshPosition& position,
                                            const ShardedParams& params, Communicator* all) {
  const auto base = std::find_if(layout.buckets.begin(), layout.buckets.end(),
                                 [](const Bucket& bucket) { return bucket.of_base; });
  FSDPD_CHECK(base != layout.buckets.end());
  const auto first = static_cast<int>(base - layout.buckets.begin());
  uint64_t sum = 0;
  FSDPD_RETURN_IF_ERROR(CatchTorch([&] {
    sum = SumOf(layout, position, params);
    return AddUp(all, params.bucket(first).main.device(), &sum);
  }));
  const bool nf4 = std::any_of(layout.buckets.begin(), layout.buckets.end(),
                               [](const Bucket& bucket) { return bucket.in_nf4; });
  return BaseLabel{absl::StrCat(NameOf(base->types.main), nf4 ? kNf4Suffix : ""),
                   absl::StrCat(absl::Hex(sum, absl::kZeroPad16)), ""};
}

}  // namespace fsdpd
