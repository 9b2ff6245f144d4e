#include "fsdp/engine/restore.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "fsdp/checkpoint/job_file.h"
#include "fsdp/torch/scalar_type.h"
#include "fsdp/torch/torch_status.h"

namespace fsdpd {
namespace {

// As initial values are drawn: large beside a call, small beside a rank's share.
constexpr int64_t kChunkElements = 1 << 20;
constexpr size_t kMaxDifferences = 100;

at::ScalarType ScalarOf(const DcpTensor& tensor) {
  if (tensor.type_name == "bfloat16") return at::kBFloat16;
  if (tensor.type_name == "float16") return at::kHalf;
  FSDPD_CHECK(tensor.type_name == "float32");  // DifferencesOf refuses others.
  return at::kFloat;
}

struct Chunk {
  int bucket = 0;
  int slot = 0;
  int moment = 0;
  int64_t param_begin = 0;
  int64_t main_begin = 0;
  int64_t elements = 0;
};

std::vector<Chunk> MomentChunks(const Plan& plan, const MeshPosition& position) {
  std::vector<Chunk> chunks;
  for (size_t b = 0; b < plan.layout.buckets.size(); ++b) {
    const Bucket& bucket = plan.layout.buckets[b];
    const int moments = bucket.trainable ? plan.spec.optimizer.moments() : 0;
    for (const BucketPiece& piece : PiecesOf(bucket, MainRange(bucket, position))) {
      for (int64_t done = 0; done < piece.elements; done += kChunkElements) {
        for (int moment = 0; moment < moments; ++moment) {
          chunks.push_back({static_cast<int>(b), piece.slot, moment, piece.param_begin + done,
                            piece.range_begin + done, std::min(kChunkElements, piece.elements - done)});
        }
      }
    }
  }
  return chunks;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Restore>> Restore::Open(const Plan& plan, const std::string& path,
                                                       bool parameters_only) {
  FSDPD_ASSIGN_OR_RETURN(std::unique_ptr<DcpReader> reader, DcpReader::Open(path));
  std::vector<std::string> differences =
      DifferencesOf(plan.spec, plan.layout, reader->index(), !parameters_only);
  if (const size_t count = differences.size(); count > 0) {
    differences.resize(std::min(count, kMaxDifferences));
    if (count > kMaxDifferences)
      differences.push_back(absl::StrCat("and ", count - kMaxDifferences, " more"));
    return absl::FailedPreconditionError(absl::StrCat("the checkpoint ", path, " is not of this job's model",
                                                      parameters_only ? "" : " and optimizer", ": ",
                                                      absl::StrJoin(differences, "; ")));
  }
  TrainingState state;
  if (plan.spec.scales_loss()) state.loss_scale = plan.spec.loss_scale.initial;
  if (!parameters_only) {
    auto read = ReadState(*reader, plan.spec);
    if (!read.ok())
      return absl::Status(read.status().code(), absl::StrCat(path, ": ", read.status().message()));
    state = *read;
  }
  if (state.step > plan.spec.steps) {
    return absl::FailedPreconditionError(absl::StrCat("the checkpoint ", path, " is of step ", state.step,
                                                      ", and train.steps is ", plan.spec.steps));
  }
  std::unique_ptr<Restore> restore(new Restore(plan, std::move(reader), parameters_only));
  restore->state_ = state;
  return restore;
}

InitialValues Restore::Initial() const {
  return [this](int unit, int param, int64_t begin, int64_t elements) {
    const UnitFacts& facts = plan_.model.units[unit];
    return Read(MainKey(absl::StrCat(facts.name, ".", facts.params[param].name)), begin, elements);
  };
}

at::Tensor Restore::Read(const std::string& key, int64_t begin, int64_t elements) const {
  const DcpTensor* tensor = reader_->FindTensor(key);
  FSDPD_CHECK(tensor != nullptr);
  const at::Tensor values = at::empty({elements}, at::TensorOptions().dtype(ScalarOf(*tensor)));
  const absl::Status status = reader_->ReadRun(*tensor, begin, elements, values.mutable_data_ptr());
  if (status.ok()) return values.to(at::kFloat);
  MutexLock lock(&mutex_);
  first_error_.Update(status);
  return at::zeros({elements}, at::TensorOptions().dtype(at::kFloat));
}

absl::Status Restore::FirstError() const {
  MutexLock lock(&mutex_);
  return first_error_;
}

absl::Status Restore::Finish(const MeshPosition& position, const ShardedParams& params) const {
  if (parameters_only_) return FirstError();
  const std::vector<std::string> names = MomentNames(plan_.spec.optimizer);
  const std::vector<Chunk> chunks = MomentChunks(plan_, position);
  FSDPD_RETURN_IF_ERROR(CatchTorch([&] {
    at::parallel_for(0, static_cast<int64_t>(chunks.size()), 1, [&](int64_t begin, int64_t end) {
      const at::NoGradGuard no_grad;  // Of this thread.
      for (int64_t c = begin; c < end; ++c) {
        const Chunk& chunk = chunks[c];
        const Bucket& bucket = plan_.layout.buckets[chunk.bucket];
        const std::string key =
            OptimizerKey(ParamName(plan_.layout, bucket, chunk.slot), names[chunk.moment]);
        params.bucket(chunk.bucket)
            .moments[chunk.moment]
            .narrow(0, chunk.main_begin, chunk.elements)
            .copy_(Read(key, chunk.param_begin, chunk.elements));
      }
    });
    if (!chunks.empty()) {
      const at::Device device = params.bucket(chunks[0].bucket).moments[0].device();
      // All of this went to the default stream, which orders itself with no lane.
      if (device.is_cuda()) c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
    }
    return absl::OkStatus();
  }));
  return FirstError();
}

}  // namespace fsdpd
