#include "fsdp/data/batches.h"

#include <ATen/ops/empty.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "fsdp/data/permutation.h"
#include "fsdp/model/unit/unit.h"
#include "fsdp/plan/spec/token_files_limit.h"

namespace fsdpd {
namespace {

constexpr int64_t kBlock = 4096;

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

absl::Status CheckFileCount(const char* field, const std::vector<TokenSource>& sources) {
  const auto has_mask = [](const TokenSource& source) { return !source.mask.empty(); };
  const size_t masks = std::count_if(sources.begin(), sources.end(), has_mask);
  if (sources.size() + masks <= kMaxTokenFiles) return absl::OkStatus();
  const std::string with_masks = masks > 0 ? absl::StrFormat(" and %d masks", masks) : "";
  return absl::InvalidArgumentError(
      absl::StrFormat("%s names %d files%s; at most %d", field, sources.size(), with_masks, kMaxTokenFiles));
}

// Prefixes the field of the spec, since users see this error as the job's failure.
absl::Status OfFile(const char* field, size_t index, const absl::Status& status, const char* which = "path") {
  return absl::Status(status.code(), absl::StrFormat("%s[%d].%s: %s", field, index, which, status.message()));
}

absl::StatusOr<std::unique_ptr<TokenFile>> OpenFile(const char* field, size_t index,
                                                    const TokenSource& source, int64_t vocab_size) {
  absl::StatusOr<std::unique_ptr<TokenFile>> file = TokenFile::Open(source, vocab_size);
  if (!file.ok()) return OfFile(field, index, file.status());
  if (source.mask.empty()) return file;
  const absl::Status opened = (*file)->OpenMask(source.mask);
  if (!opened.ok()) return OfFile(field, index, opened, "mask");
  return file;
}

void AddPackingNote(const char* field, size_t index, const TokenReader& reader,
                    std::vector<std::string>* notes) {
  const PackedDocuments* const packed = reader.documents();
  if (packed == nullptr) return;
  notes->push_back(absl::StrFormat("%s[%d].path %s: packed %d documents into %d samples, %.2f%% padding",
                                   field, index, reader.file()->path(), packed->documents(),
                                   packed->samples(), 100 * packed->padding()));
}

// One for all files, because a job keeps few warnings.
std::vector<std::string> WarningsOf(const char* field, const std::vector<const TokenReader*>& readers,
                                    const DataConfig& data) {
  int64_t documents = 0, too_long = 0;
  const TokenReader* worst = nullptr;
  for (const TokenReader* reader : readers) {
    const PackedDocuments* const packed = reader->documents();
    if (packed == nullptr) continue;
    documents += packed->documents();
    too_long += packed->too_long();
    if (worst == nullptr || packed->too_long() > worst->documents()->too_long()) worst = reader;
  }
  if (too_long == 0) return {};
  const std::string most =
      too_long > worst->documents()->too_long()
          ? absl::StrFormat(", %d of them in %s", worst->documents()->too_long(), worst->file()->path())
          : absl::StrCat(", all in ", worst->file()->path());
  return {absl::StrFormat(
      "%s: %d of %d documents are longer than %d tokens (sequence_length + 1) and are %s (data.too_long)%s",
      field, too_long, documents, data.sequence_length + 1, HandlingOf(data.too_long), most)};
}

absl::Status AddTraits(const char* field, size_t index, const TokenReader& reader,
                       std::vector<std::string>* lines) {
  const TokenFile& file = *reader.file();
  const absl::StatusOr<std::string> traits = file.Traits(), of_mask = file.MaskTraits();
  if (!traits.ok()) return OfFile(field, index, traits.status());
  if (!of_mask.ok()) return OfFile(field, index, of_mask.status(), "mask");
  lines->push_back(absl::StrFormat("%s[%d].path %s", field, index, *traits));
  if (!of_mask->empty()) lines->push_back(absl::StrFormat("%s[%d].mask %s", field, index, *of_mask));
  if (const PackedDocuments* const packed = reader.documents(); packed != nullptr) {
    lines->push_back(absl::StrFormat("%s[%d].packing samples of %s = %d documents in %d samples, hash %016x",
                                     field, index, file.path(), packed->documents(), packed->samples(),
                                     packed->Hash()));
  }
  return absl::OkStatus();
}

PackingOptions PackingOf(const DataConfig& data, std::optional<uint64_t> seed) {
  FSDPD_CHECK(data.document_end_token.has_value());
  return {data.sequence_length + 1, *data.document_end_token, data.too_long, seed};
}

// Fills rows with token 0 and ignored targets, one document per row.
void Clear(Batch* batch) {
  std::fill_n(batch->tokens.mutable_data_ptr<int64_t>(), batch->tokens.numel(), 0);
  std::fill_n(batch->targets.mutable_data_ptr<int64_t>(), batch->targets.numel(), kIgnoredTarget);
  batch->counted = 0;
  batch->document_ends = 0;
  if (!batch->positions.defined()) return;
  const int64_t sequence = batch->positions.size(1);
  int64_t* const positions = batch->positions.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < batch->positions.numel(); ++i) positions[i] = i % sequence;
}

// The tokens of a sample and its documents.
class SampleText {
 public:
  SampleText(const DataConfig& data, const TokenWindow& window) : data_(data), window_(window) {}

  int64_t tokens() const { return static_cast<int64_t>(window_.ids.size()); }
  int64_t id(int64_t t) const { return window_.ids[t]; }

  bool EndsDocument(int64_t t) const {
    return data_.document_end_token.has_value() && id(t) == *data_.document_end_token;
  }
  // Whether the token starts another document than the one before it.
  bool Begins(int64_t t) const {
    if (!data_.document_end_token.has_value()) return false;
    return t > 0 && (EndsDocument(t - 1) || window_.detached[t] != 0);
  }
  bool CountsAsTarget(int64_t t) const {
    return window_.counts[t] != 0 && window_.ids[t] != data_.ignore_index && !Begins(t);
  }

 private:
  const DataConfig& data_;
  const TokenWindow& window_;
};

// Copies this rank's part of a sample: inputs, and as targets the next tokens.
void SetRow(const SequencePartition& partition, const SampleText& sample, int64_t row, Batch* batch) {
  int64_t* tokens = batch->tokens.mutable_data_ptr<int64_t>() + row * partition.tokens();
  int64_t* targets = batch->targets.mutable_data_ptr<int64_t>() + row * partition.tokens();
  for (int64_t t = 0; t < partition.tokens(); ++t) {
    const int64_t position = partition.PositionOf(t);
    if (position >= sample.tokens()) continue;
    tokens[t] = sample.id(position);
    batch->document_ends += sample.EndsDocument(position);
    if (position + 1 >= sample.tokens() || !sample.CountsAsTarget(position + 1)) continue;
    targets[t] = sample.id(position + 1);
    ++batch->counted;
  }
  if (!batch->positions.defined()) return;
  FSDPD_CHECK(partition.ranks == 1);
  int64_t* const positions = batch->positions.mutable_data_ptr<int64_t>() + row * partition.tokens();
  for (int64_t t = 1; t < partition.tokens(); ++t) {
    const bool begins = t == sample.tokens() || (t < sample.tokens() && sample.Begins(t));
    positions[t] = begins ? 0 : positions[t - 1] + 1;
  }
}

// Derives documents from positions.
void SetDocuments(Batch* batch) {
  if (!batch->positions.defined()) return;
  const int64_t* const positions = batch->positions.const_data_ptr<int64_t>();
  std::vector<int64_t>* const starts = &batch->documents.starts;
  starts->clear();
  for (int64_t i = 0; i < batch->positions.numel(); ++i) {
    if (positions[i] == 0) starts->push_back(i);
  }
  int32_t* const bounds = batch->documents.bounds.mutable_data_ptr<int32_t>();
  std::copy(starts->begin(), starts->end(), bounds);
  bounds[starts->size()] = static_cast<int32_t>(batch->positions.numel());
}

}  // namespace

int64_t MaxBounds(int64_t rows, int64_t sequence) { return rows * sequence + 1; }

Batch MakeBatch(const Spec& spec) {
  const std::vector<int64_t> shape = {spec.micro_batch, spec.SequenceOf(/*rank=*/0).tokens()};
  Batch batch = {at::empty(shape, at::kLong), at::empty(shape, at::kLong)};
  if (!spec.data.document_end_token.has_value()) return batch;
  batch.positions = at::empty(shape, at::kLong);
  batch.documents.bounds = at::empty({MaxBounds(shape[0], shape[1])}, at::kInt);
  return batch;
}

std::vector<int64_t> SharePlaces(const std::vector<double>& weights, int64_t block) {
  FSDPD_CHECK(!weights.empty() && static_cast<int64_t>(weights.size()) <= block);
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> places;
  std::vector<double> missing;  // Rounding remainders, by source.
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
  // Sources that were raised to one place take it from the largest, where it matters least.
  for (; left < 0; ++left) --*std::max_element(places.begin(), places.end());
  return places;
}

Batches::Batches(const Spec& spec, int rank, DataOrigin origin)
    : spec_(spec),
      data_rank_(spec.mesh.DataRank(rank)),
      partition_(spec.SequenceOf(rank)),
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
  FSDPD_RETURN_IF_ERROR(CheckFileCount("data.tokens", spec.data.tokens));
  std::vector<double> weights;
  for (const TokenSource& file : spec.data.tokens) weights.push_back(file.weight);
  const std::vector<int64_t> places = SharePlaces(weights, kBlock);
  for (size_t i = 0; i < places.size(); ++i) {
    options.seed = Mix(spec.seed, i);
    FSDPD_ASSIGN_OR_RETURN(std::unique_ptr<TokenFile> file,
                           OpenFile("data.tokens", i, spec.data.tokens[i], options.vocab_size));
    absl::StatusOr<std::unique_ptr<TokenReader>> reader =
        spec.data.packs_documents ? MakeDocumentWindows(std::move(file), PackingOf(spec.data, options.seed))
                                  : MakeFileWindows(std::move(file), options);
    if (!reader.ok()) return OfFile("data.tokens", i, reader.status());
    batches.sources_.push_back({*std::move(reader), places[i]});
  }
  batches.SpreadPlaces();
  return batches;
}

void Batches::SpreadPlaces() {
  std::vector<int64_t> owners;  // Source of each place, before they are spread.
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

absl::Status Batches::ReadSample(int64_t number, TokenWindow* out) const {
  const Place& place = block_[number % kBlock];
  const Source& source = sources_[place.source];
  return source.reader->Read(number / kBlock * source.places + place.ordinal, out);
}

// `sample`: index within the step, over all ranks.
int64_t Batches::NumberOf(int64_t step, int64_t sample) const {
  FSDPD_CHECK(step > origin_.step);
  return SampleNumber(origin_.skipped_samples, origin_.samples,
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
  TokenWindow window;
  for (int64_t row = 0; row < spec_.micro_batch; ++row) {
    FSDPD_RETURN_IF_ERROR(ReadSample(NumberOf(step, first + row), &window));
    SetRow(partition_, {spec_.data, window}, row, to);
  }
  SetDocuments(to);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> Batches::Traits() const {
  std::vector<std::string> lines;
  for (size_t i = 0; i < sources_.size(); ++i) {
    const TokenReader& reader = *sources_[i].reader;
    if (reader.file() != nullptr) FSDPD_RETURN_IF_ERROR(AddTraits("data.tokens", i, reader, &lines));
  }
  return lines;
}

int64_t Batches::samples_per_epoch() const {
  return std::accumulate(sources_.begin(), sources_.end(), int64_t{0},
                         [](int64_t sum, const Source& source) { return sum + source.reader->samples(); });
}

std::vector<std::string> Batches::Warnings() const {
  std::vector<const TokenReader*> readers;
  for (const Source& source : sources_) readers.push_back(source.reader.get());
  return WarningsOf("data.tokens", readers, spec_.data);
}

std::vector<std::string> Batches::PackingNotes() const {
  std::vector<std::string> notes;
  for (size_t i = 0; i < sources_.size(); ++i) AddPackingNote("data.tokens", i, *sources_[i].reader, &notes);
  return notes;
}

EvaluationBatches::EvaluationBatches(const Spec& spec, int rank)
    : spec_(spec), data_rank_(spec.mesh.DataRank(rank)), partition_(spec.SequenceOf(rank)) {}

absl::StatusOr<EvaluationBatches> EvaluationBatches::Open(const Spec& spec, int rank) {
  FSDPD_CHECK(rank >= 0 && rank < spec.mesh.world() && spec.micro_batch > 0);
  FSDPD_CHECK(spec.evaluation.every_steps > 0 && !spec.data.validation.empty());
  FSDPD_RETURN_IF_ERROR(CheckFileCount("data.validation", spec.data.validation));
  EvaluationBatches batches(spec, rank);
  for (size_t i = 0; i < spec.data.validation.size(); ++i) {
    FSDPD_ASSIGN_OR_RETURN(std::unique_ptr<TokenFile> file,
                           OpenFile("data.validation", i, spec.data.validation[i], VocabSize(spec.model)));
    absl::StatusOr<std::unique_ptr<TokenReader>> reader =
        spec.data.packs_documents
            ? MakeDocumentWindows(std::move(file), PackingOf(spec.data, /*seed=*/std::nullopt))
            : MakeFileSlices(std::move(file), {spec.data.sequence_length + 1, VocabSize(spec.model)});
    if (!reader.ok()) return OfFile("data.validation", i, reader.status());
    batches.samples_ += (*reader)->samples();
    batches.files_.push_back(*std::move(reader));
  }
  if (spec.evaluation.samples > 0) batches.samples_ = std::min(batches.samples_, spec.evaluation.samples);
  batches.rounds_ = CeilDivide(batches.samples_, spec.mesh.data_ranks() * spec.micro_batch);
  return batches;
}

absl::StatusOr<std::vector<std::string>> EvaluationBatches::Traits() const {
  std::vector<std::string> lines;
  for (size_t i = 0; i < files_.size(); ++i)
    FSDPD_RETURN_IF_ERROR(AddTraits("data.validation", i, *files_[i], &lines));
  return lines;
}

std::vector<std::string> EvaluationBatches::Warnings() const {
  std::vector<const TokenReader*> readers;
  for (const std::unique_ptr<TokenReader>& file : files_) readers.push_back(file.get());
  return WarningsOf("data.validation", readers, spec_.data);
}

std::vector<std::string> EvaluationBatches::PackingNotes() const {
  std::vector<std::string> notes;
  for (size_t i = 0; i < files_.size(); ++i) AddPackingNote("data.validation", i, *files_[i], &notes);
  return notes;
}

absl::Status EvaluationBatches::ReadSample(int64_t sample, int64_t row, Batch* batch) const {
  for (const std::unique_ptr<TokenReader>& file : files_) {
    if (sample >= file->samples()) {
      sample -= file->samples();
      continue;
    }
    TokenWindow window;
    FSDPD_RETURN_IF_ERROR(file->Read(sample, &window));
    SetRow(partition_, {spec_.data, window}, row, batch);
    return absl::OkStatus();
  }
  FSDPD_CHECK(false);  // The files' samples sum to at least samples_.
  return absl::OkStatus();
}

absl::Status EvaluationBatches::Read(int64_t round, Batch* to) const {
  FSDPD_CHECK(round >= 0 && round < rounds_);
  const int64_t first = (round * spec_.mesh.data_ranks() + data_rank_) * spec_.micro_batch;
  const int64_t rows = std::min(spec_.micro_batch, samples_ - first);  // Negative past the last sample.
  Clear(to);
  for (int64_t row = 0; row < rows; ++row) FSDPD_RETURN_IF_ERROR(ReadSample(first + row, row, to));
  SetDocuments(to);
  return absl::OkStatus();
}

}  // namespace fsdpd
