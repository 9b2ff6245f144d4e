#include "fsdp/data/batches.h"

#include <ATen/ops/empty.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "fsdp/data/permutation.h"

namespace fsdpd {
namespace {

constexpr int64_t kBlock = 4096;
constexpr size_t kMaxFiles = 1024;  // Every file has a place in a block, and a descriptor open.

}  // namespace

std::vector<int64_t> SharePlaces(const std::vector<double>& weights, int64_t block) {
  FSDPD_CHECK(!weights.empty() && static_cast<int64_t>(weights.size()) <= block);
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> places;
  for (double weight : weights) {
    FSDPD_CHECK(weight > 0);
    places.push_back(std::max<int64_t>(1, static_cast<int64_t>(weight / total * block)));
  }
  // What rounding left over, or took too much, belongs to the largest source: there it matters least.
  const auto largest = std::max_element(places.begin(), places.end());
  *largest += block - std::accumulate(places.begin(), places.end(), int64_t{0});
  return places;
}

absl::StatusOr<Batches> Batches::Open(const Spec& spec, int rank) {
  FSDPD_CHECK(rank >= 0 && rank < spec.world);
  FSDPD_CHECK(spec.global_batch == spec.micro_batches_per_step() * spec.micro_batch * spec.world);
  Batches batches(spec, rank);
  TokenReaderOptions options{spec.data.sequence_length + 1, spec.model.vocab_size, spec.seed};
  if (spec.data.tokens.empty()) {
    options.vocab_size = spec.data.synthetic_vocab;
    batches.sources_.push_back({MakeSyntheticTokens(options), kBlock});
    return batches;
  }
  if (spec.data.tokens.size() > kMaxFiles) {
    return absl::InvalidArgumentError(
        absl::StrFormat("data.tokens names %d files; at most %d", spec.data.tokens.size(), kMaxFiles));
  }
  std::vector<double> weights;
  for (const TokenSource& file : spec.data.tokens) weights.push_back(file.weight);
  const std::vector<int64_t> places = SharePlaces(weights, kBlock);
  for (size_t i = 0; i < places.size(); ++i) {
    options.seed = Mix(spec.seed, i);
    FSDPD_ASSIGN_OR_RETURN(std::unique_ptr<TokenReader> reader, OpenTokenFile(spec.data.tokens[i], options));
    batches.sources_.push_back({std::move(reader), places[i]});
  }
  return batches;
}

absl::Status Batches::ReadSample(int64_t number, int64_t* out) const {
  const int64_t block = number / kBlock;
  int64_t place = Permute(Mix(spec_.seed, static_cast<uint64_t>(block)), number % kBlock, kBlock);
  for (const Source& source : sources_) {
    if (place < source.places) return source.reader->Read(block * source.places + place, out);
    place -= source.places;
  }
  FSDPD_CHECK(false);  // Places sum to the block.
  return absl::OkStatus();
}

absl::StatusOr<Batch> Batches::Read(int64_t step, int64_t micro_batch) const {
  FSDPD_CHECK(step >= 1 && micro_batch >= 0 && micro_batch < spec_.micro_batches_per_step());
  const int64_t sequence = spec_.data.sequence_length;
  const int64_t per_rank = spec_.global_batch / spec_.world;
  const int64_t first = (step - 1) * spec_.global_batch + rank_ * per_rank + micro_batch * spec_.micro_batch;
  Batch batch;
  batch.tokens = at::empty({spec_.micro_batch, sequence}, at::kLong);
  batch.targets = at::empty({spec_.micro_batch, sequence}, at::kLong);
  std::vector<int64_t> window(sequence + 1);
  for (int64_t i = 0; i < spec_.micro_batch; ++i) {
    FSDPD_RETURN_IF_ERROR(ReadSample(first + i, window.data()));
    std::copy_n(window.data(), sequence, batch.tokens.mutable_data_ptr<int64_t>() + i * sequence);
    std::copy_n(window.data() + 1, sequence, batch.targets.mutable_data_ptr<int64_t>() + i * sequence);
  }
  return batch;
}

}  // namespace fsdpd
