#include "fsdp/data/batches.h"

#include <ATen/ops/empty.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "fsdp/data/permutation.h"
#include "fsdp/model/unit/unit.h"

namespace fsdpd {
namespace {

constexpr int64_t kBlock = 4096;
constexpr size_t kMaxFiles = 1024;  // Every file has a place in a block, and a descriptor open.

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

absl::Status CheckFileCount(const char* field, size_t files) {
  if (files <= kMaxFiles) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s names %d files; at most %d", field, files, kMaxFiles));
}

// Names the field of the spec: whoever wrote it reads this in the job's failure.
absl::Status OfFile(const char* field, size_t index, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrFormat("%s[%d].path: %s", field, index, status.message()));
}

absl::Status AddTraits(const char* field, size_t index, const absl::StatusOr<std::string>& traits,
                       std::vector<std::string>* lines) {
  if (!traits.ok()) return OfFile(field, index, traits.status());
  if (!traits->empty()) lines->push_back(absl::StrFormat("%s[%d].path %s", field, index, *traits));
  return absl::OkStatus();
}

// Rows of token 0 and ignored targets.
void Clear(Batch* batch) {
  std::fill_n(batch->tokens.mutable_data_ptr<int64_t>(), batch->tokens.numel(), 0);
  std::fill_n(batch->targets.mutable_data_ptr<int64_t>(), batch->targets.numel(), kIgnoredTarget);
  batch->counted = 0;
}

// Of the first `count` tokens of a sample, this rank's: inputs, and as targets the same moved on by one.
void SetRow(const SequenceCut& cut, const std::optional<int64_t>& ignored, const int64_t* sample,
            int64_t count, int64_t row, Batch* batch) {
  int64_t* tokens = batch->tokens.mutable_data_ptr<int64_t>() + row * cut.tokens();
  int64_t* targets = batch->targets.mutable_data_ptr<int64_t>() + row * cut.tokens();
  for (int64_t t = 0; t < cut.tokens(); ++t) {
    const int64_t position = cut.PositionOf(t);
    if (position >= count) continue;
    tokens[t] = sample[position];
    if (position + 1 >= count || sample[position + 1] == ignored) continue;
    targets[t] = sample[position + 1];
    ++batch->counted;
  }
}

}  // namespace

Batch MakeBatch(const Spec& spec) {
  const std::vector<int64_t> shape = {spec.micro_batch, spec.SequenceOf(/*rank=*/0).tokens()};
  return {at::empty(shape, at::kLong), at::empty(shape, at::kLong), 0};
}

std::vector<int64_t> SharePlaces(const std::vector<double>& weights, int64_t block) {
  FSDPD_CHECK(!weights.empty() && static_cast<int64_t>(weights.size()) <= block);
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> places;
  std::vector<double> missing;  // Of each source's share.
  for (double weight : weights) {
    FSDPD_CHECK(weight > 0);
    const double share = weight / total * static_cast<double>(block);
    places.push_back(std::max<int64_t>(1, static_cast<int64_t>(share)));
    missing.push_back(share - static_cast<double>(places.back()));
  }
  int64_t left = block - std::accumulate(places.begin(), places.end(), int64_t{0});
  for (; left > 0; --left) {
    const auto neediest = std::max_element(missing.begin(), missing.end());
    ++places[neediest - missing.begin()];
    *neediest -= 1;
  }
  // The sources that got a whole place for less than one take from the largest, where it matters least.
  for (; left < 0; ++left) --*std::max_element(places.begin(), places.end());
  return places;
}

Batches::Batches(const Spec& spec, int rank, DataOrigin origin)
    : spec_(spec),
      data_rank_(spec.mesh.DataRank(rank)),
      cut_(spec.SequenceOf(rank)),
      origin_(std::move(origin)) {}

absl::StatusOr<Batches> Batches::Open(const Spec& spec, int rank, DataOrigin origin) {
  FSDPD_CHECK(rank >= 0 && rank < spec.mesh.world());
  FSDPD_CHECK(spec.global_batch == spec.micro_batches_per_step() * spec.micro_batch * spec.mesh.data_ranks());
  Batches batches(spec, rank, std::move(origin));
  TokenReaderOptions options{spec.data.sequence_length + 1, VocabSize(spec.model), spec.seed};
  if (spec.data.tokens.empty()) {
    options.vocab_size = spec.data.synthetic_vocab;
    batches.sources_.push_back({MakeSyntheticTokens(options), kBlock});
    batches.SpreadPlaces();
    return batches;
  }
  FSDPD_RETURN_IF_ERROR(CheckFileCount("data.tokens", spec.data.tokens.size()));
  std::vector<double> weights;
  for (const TokenSource& file : spec.data.tokens) weights.push_back(file.weight);
  const std::vector<int64_t> places = SharePlaces(weights, kBlock);
  for (size_t i = 0; i < places.size(); ++i) {
    options.seed = Mix(spec.seed, i);
    absl::StatusOr<std::unique_ptr<TokenReader>> reader = OpenTokenFile(spec.data.tokens[i], options);
    if (!reader.ok()) return OfFile("data.tokens", i, reader.status());
    batches.sources_.push_back({*std::move(reader), places[i]});
  }
  batches.SpreadPlaces();
  return batches;
}

void Batches::SpreadPlaces() {
  std::vector<int64_t> owners;  // By source, before they are spread.
  for (size_t i = 0; i < sources_.size(); ++i) {
    owners.insert(owners.end(), sources_[i].places, static_cast<int64_t>(i));
  }
  std::vector<int64_t> taken(sources_.size(), 0);
  const auto size = static_cast<int64_t>(owners.size());
  for (int64_t i = 0; i < size; ++i) {
    const int64_t source = owners[Permute(spec_.seed, i, size)];
    block_.push_back({source, taken[source]++});
  }
}

absl::Status Batches::ReadSample(int64_t number, int64_t* out) const {
  const Place& place = block_[number % kBlock];
  const Source& source = sources_[place.source];
  return source.reader->Read(number / kBlock * source.places + place.ordinal, out);
}

// `sample`: of the step's, over all ranks.
int64_t Batches::NumberOf(int64_t step, int64_t sample) const {
  FSDPD_CHECK(step > origin_.step);
  return SampleNumber(origin_.passed_over, origin_.samples,
                      (step - 1 - origin_.step) * spec_.global_batch + sample);
}

SampleRange Batches::SamplesOf(int64_t step) const {
  return {NumberOf(step, 0), NumberOf(step, spec_.global_batch - 1) + 1};
}

absl::Status Batches::Read(int64_t step, int64_t micro_batch, Batch* to) const {
  FSDPD_CHECK(micro_batch >= 0 && micro_batch < spec_.micro_batches_per_step());
  const int64_t per_rank = spec_.global_batch / spec_.mesh.data_ranks();
  const int64_t first = data_rank_ * per_rank + micro_batch * spec_.micro_batch;
  Clear(to);
  std::vector<int64_t> sample(spec_.data.sequence_length + 1);
  for (int64_t row = 0; row < spec_.micro_batch; ++row) {
    FSDPD_RETURN_IF_ERROR(ReadSample(NumberOf(step, first + row), sample.data()));
    SetRow(cut_, spec_.data.ignored_token, sample.data(), static_cast<int64_t>(sample.size()), row, to);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> Batches::Traits() const {
  std::vector<std::string> lines;
  for (size_t i = 0; i < sources_.size(); ++i)
    FSDPD_RETURN_IF_ERROR(AddTraits("data.tokens", i, sources_[i].reader->Traits(), &lines));
  return lines;
}

EvaluationBatches::EvaluationBatches(const Spec& spec, int rank)
    : spec_(spec), data_rank_(spec.mesh.DataRank(rank)), cut_(spec.SequenceOf(rank)) {}

absl::StatusOr<EvaluationBatches> EvaluationBatches::Open(const Spec& spec, int rank) {
  FSDPD_CHECK(rank >= 0 && rank < spec.mesh.world() && spec.micro_batch > 0);
  FSDPD_CHECK(spec.evaluation.every_steps > 0 && !spec.data.validation.empty());
  FSDPD_RETURN_IF_ERROR(CheckFileCount("data.validation", spec.data.validation.size()));
  EvaluationBatches batches(spec, rank);
  for (size_t i = 0; i < spec.data.validation.size(); ++i) {
    absl::StatusOr<std::unique_ptr<TokenFile>> opened =
        TokenFile::Open(spec.data.validation[i], VocabSize(spec.model));
    if (!opened.ok()) return OfFile("data.validation", i, opened.status());
    std::unique_ptr<TokenFile> file = *std::move(opened);
    const int64_t targets = file->tokens() - 1;
    if (targets < 1) {
      return OfFile("data.validation", i,
                    absl::InvalidArgumentError(
                        absl::StrFormat("%s: holds %d tokens, but evaluation needs a token and the next",
                                        file->path(), file->tokens())));
    }
    const int64_t samples = CeilDivide(targets, spec.data.sequence_length);
    batches.files_.push_back({std::move(file), samples});
    batches.samples_ += samples;
  }
  if (spec.evaluation.samples > 0) batches.samples_ = std::min(batches.samples_, spec.evaluation.samples);
  batches.rounds_ = CeilDivide(batches.samples_, spec.mesh.data_ranks() * spec.micro_batch);
  return batches;
}

absl::StatusOr<std::vector<std::string>> EvaluationBatches::Traits() const {
  std::vector<std::string> lines;
  for (size_t i = 0; i < files_.size(); ++i)
    FSDPD_RETURN_IF_ERROR(AddTraits("data.validation", i, files_[i].file->Traits(), &lines));
  return lines;
}

absl::Status EvaluationBatches::ReadSample(int64_t sample, int64_t row, Batch* batch) const {
  for (const File& file : files_) {
    if (sample >= file.samples) {
      sample -= file.samples;
      continue;
    }
    const int64_t sequence = spec_.data.sequence_length;
    const int64_t begin = sample * sequence;
    std::vector<int64_t> tokens(std::min(sequence + 1, file.file->tokens() - begin));
    const auto count = static_cast<int64_t>(tokens.size());
    FSDPD_RETURN_IF_ERROR(file.file->Read(begin, count, tokens.data()));
    SetRow(cut_, spec_.data.ignored_token, tokens.data(), count, row, batch);
    return absl::OkStatus();
  }
  FSDPD_CHECK(false);  // The files' samples sum to samples_ or more.
  return absl::OkStatus();
}

absl::Status EvaluationBatches::Read(int64_t round, Batch* to) const {
  FSDPD_CHECK(round >= 0 && round < rounds_);
  const int64_t first = (round * spec_.mesh.data_ranks() + data_rank_) * spec_.micro_batch;
  const int64_t rows = std::min(spec_.micro_batch, samples_ - first);  // Negative beyond the last.
  Clear(to);
  for (int64_t row = 0; row < rows; ++row) FSDPD_RETURN_IF_ERROR(ReadSample(first + row, row, to));
  return absl::OkStatus();
}

}  // namespace fsdpd
