#include "fsdp/checkpoint/convert/convert.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/parallel_for.h"
#include "fsdp/checkpoint/convert/convert_journal.h"
#include "fsdp/checkpoint/convert/megatron_files.h"
#include "fsdp/checkpoint/dcp/dcp_store.h"
#include "fsdp/checkpoint/format/crc32.h"
#include "fsdp/checkpoint/format/durable_file.h"
#include "fsdp/checkpoint/format/number_cast.h"
#include "fsdp/checkpoint/format/part_directory.h"
#include "fsdp/checkpoint/hf/hf_store.h"
#include "fsdp/checkpoint/hf/peft_config.h"
#include "fsdp/checkpoint/names/adapter_names.h"
#include "fsdp/checkpoint/names/tensor_names.h"

namespace fsdpd {
namespace {

constexpr int64_t kMaxFileBytes = std::numeric_limits<int64_t>::max();  // PEFT reads only one file.

// Converts one tensor at a time: reads, casts and transposes it.
class TensorConverter {
 public:
  // `merge`: may be null.
  TensorConverter(const TensorReader& source, const TensorType& type, const LoraMerge* merge,
                  int64_t head_rows)
      : source_(source), type_(type), merge_(merge), head_rows_(head_rows) {}

  // `from` and `to`: the same parameter in both namings. Returns its elements (for a part of a tensor, in the
  // parameter's order), valid until the next call.
  absl::StatusOr<const char*> Bring(size_t tensor, const NamedParam& from, const NamedParam& to) {
    const StoredTensor& stored = source_.tensors()[tensor];
    const int64_t numbers = from.elements();
    const TensorType& fp32 = *FindTensorType("float32");
    numbers_.reset(new char[numbers * std::max({stored.type->bytes, type_.bytes, fp32.bytes})]);
    if (from.runs.empty()) FSDPD_RETURN_IF_ERROR(source_.Read(tensor, numbers_.get()));
    for (const SharedRun& run : from.runs) {
      FSDPD_RETURN_IF_ERROR(
          source_.ReadRun(tensor, run.theirs, run.numbers, numbers_.get() + run.ours * stored.type->bytes));
    }
    const bool merges = merge_ != nullptr && merge_->Has(from.ours);
    const TensorType& type = merges ? fp32 : type_;
    overflowed_ += CastNumbers(*stored.type, type, numbers, numbers_.get());
    if (merges || from.rearrangement != to.rearrangement) {
      Turn(from.rearrangement, /*to_ours=*/true, from.shape[0], numbers, type.bytes);
      if (merges) merge_->AddTo(from.ours, reinterpret_cast<float*>(numbers_.get()));
      Turn(to.rearrangement, /*to_ours=*/false, from.shape[0], numbers, type.bytes);
    }
    if (merges) overflowed_ += CastNumbers(fp32, type_, numbers, numbers_.get());
    return numbers_.get();
  }

  int64_t overflowed() const { return overflowed_; }

 private:
  void Turn(Rearrangement rearrangement, bool to_ours, int64_t rows, int64_t numbers, int64_t bytes) {
    if (rearrangement == Rearrangement::kNone) return;
    std::unique_ptr<char[]> out(new char[numbers * bytes]);
    Rearrange(rearrangement, to_ours, rows, numbers / rows, head_rows_, bytes, numbers_.get(), out.get());
    numbers_ = std::move(out);
  }

  const TensorReader& source_;
  const TensorType& type_;
  const LoraMerge* const merge_;
  const int64_t head_rows_;
  std::unique_ptr<char[]> numbers_;
  int64_t overflowed_ = 0;
};

// The configuration next to the weights of a Hugging Face or PEFT directory.
std::string ConfigOf(const ConversionOptions& conversion) {
  const std::optional<LoraConfig>& lora = conversion.adapters;
  return lora.has_value() ? MakePeftConfig(*lora, TargetModulesOf(conversion.model, *lora))
                          : conversion.config;
}

absl::StatusOr<std::unique_ptr<TensorWriter>> MakeWriter(const ConversionOptions& conversion,
                                                         const ConvertPlan& plan,
                                                         const std::string& directory,
                                                         const std::vector<CompleteFile>& whole) {
  if (conversion.to == StoreFormat::kHf) {
    std::vector<StoredTensor> tensors;
    for (const ConvertTarget& target : plan.targets) {
      tensors.push_back({target.piece.name, target.piece.type, target.piece.shape, target.bytes()});
    }
    const bool peft = conversion.adapters.has_value();
    return MakeHfWriter(directory, tensors, peft ? kMaxFileBytes : conversion.file_bytes,
                        ConfigOf(conversion), whole, peft ? kPeftNames : kHfModelNames);
  }
  std::vector<DcpPiece> pieces;
  for (const ConvertTarget& target : plan.targets) pieces.push_back(target.piece);
  return MakeDcpWriter(directory, pieces, conversion.file_bytes, plan.values, whole);
}

absl::Status Carry(const ConvertPlan& plan, const ConvertTarget& target, TensorConverter* converter,
                   TensorWriter* writer, size_t number) {
  if (target.sources.empty()) return writer->Write(number, &target.number);
  const ConvertSource& first = target.sources[0];
  if (plan.to[first.param].runs.empty()) {
    FSDPD_ASSIGN_OR_RETURN(const char* numbers,
                           converter->Bring(first.tensor, plan.from[first.param], plan.to[first.param]));
    return writer->Write(number, numbers);
  }
  std::unique_ptr<char[]> all(new char[target.bytes()]);
  const int64_t width = target.piece.type->bytes;
  for (const ConvertSource& way : target.sources) {
    FSDPD_ASSIGN_OR_RETURN(const char* numbers,
                           converter->Bring(way.tensor, plan.from[way.param], plan.to[way.param]));
    for (const SharedRun& run : plan.to[way.param].runs) {
      std::memcpy(all.get() + (run.theirs - target.begin) * width, numbers + run.ours * width,
                  run.numbers * width);
    }
  }
  return writer->Write(number, all.get());
}

// Everything, except the source, that determines the bytes of the target.
std::string WrittenText(const ConversionOptions& conversion, const ConvertPlan& plan) {
  const std::string config = ConfigOf(conversion);
  uint32_t crc32 = Crc32(config.data(), static_cast<int64_t>(config.size()));
  const auto add = [&crc32](const std::string& text) {
    crc32 = Crc32(text.data(), static_cast<int64_t>(text.size()) + 1, crc32);
  };
  for (const ConvertTarget& target : plan.targets) {
    add(target.piece.name);
    add(absl::StrCat(target.piece.type->name, " ", ShapeText(target.piece.shape), " ",
                     ShapeText(target.piece.at.offsets)));
    for (const ConvertSource& way : target.sources) {
      const NamedParam& from = plan.from[way.param];
      add(absl::StrCat(from.theirs, " ", from.ours, " ", static_cast<int>(from.rearrangement), " ",
                       way.tensor));
      for (const SharedRun& run : from.runs) add(absl::StrCat(run.ours, " ", run.theirs, " ", run.numbers));
    }
  }
  for (const DcpSmall& value : plan.values) add(value.record);
  if (conversion.merge != nullptr) add(absl::StrCat("adapters ", conversion.merge->crc32()));
  add(conversion.spec);
  if (const std::optional<AdamSettings>& adam = plan.adam; adam.has_value()) {
    add(absl::StrCat(adam->lr, " ", adam->min_lr, " ", adam->beta1, " ", adam->beta2, " ", adam->eps, " ",
                     adam->weight_decay, " ", adam->decay, " ", adam->warmup_samples, " ", adam->samples));
  }
  return absl::StrFormat("%d tensors of %d bytes (%08x)", plan.tensors(), plan.bytes(), crc32);
}

// A target inside the source would become part of that checkpoint, and be removed with it.
absl::Status CheckTargetIsOutside(const ConversionOptions& conversion) {
  std::error_code error;
  const std::filesystem::path source = std::filesystem::canonical(conversion.source, error);
  std::filesystem::path target = std::filesystem::weakly_canonical(conversion.target, error);
  if (error) return absl::OkStatus();  // Opening them reports a better error.
  for (target = target.parent_path(); target.has_relative_path(); target = target.parent_path()) {
    if (target == source) {
      return absl::FailedPreconditionError(absl::StrCat(conversion.target, ": is inside SOURCE (",
                                                        conversion.source, "); use another directory"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ConversionArguments> ArgumentsOf(const ConversionOptions& conversion,
                                                const ConvertPlan& plan) {
  std::error_code error;
  const std::filesystem::path source = std::filesystem::canonical(conversion.source, error);
  FSDPD_ASSIGN_OR_RETURN(const std::string files, FilesText(conversion.source));
  const char* formats[] = {"fsdp_dtensor", "hf", "torch_dist"};
  return ConversionArguments{
      {"SOURCE", error ? conversion.source : source.string()},
      {"files of SOURCE", files},
      {"--to", conversion.adapters.has_value() ? "peft" : formats[static_cast<int>(conversion.to)]},
      {"--dtype", std::string(conversion.type->name)},
      {"--shard-bytes", absl::StrCat(conversion.file_bytes)},
      {"--no-optimizer", conversion.optimizer ? "not given" : "given"},
      {"output", WrittenText(conversion, plan)}};
}

// The files of one conversion, filled by several threads.
class Files {
 public:
  Files(TensorWriter* writer, const ConvertPlan& plan, ConversionJournal* journal)
      : writer_(*writer), journal_(journal), files_(writer->files()) {
    for (size_t i = 0; i < plan.targets.size(); ++i) ++files_[writer->FileOf(i)].missing;
  }

  // Called on any thread after a target was written. The thread that writes the last target of a file
  // finishes it.
  absl::Status Wrote(size_t target, int64_t overflowed) {
    const size_t number = writer_.FileOf(target);
    File& file = files_[number];
    file.overflowed += overflowed;
    if (--file.missing > 0) return absl::OkStatus();
    FSDPD_ASSIGN_OR_RETURN(const CompleteFile whole, writer_.FinishFile(number));
    return journal_ == nullptr ? absl::OkStatus() : journal_->Add({whole, file.overflowed});
  }

  int64_t overflowed() const {
    int64_t all = 0;
    for (const File& file : files_) all += file.overflowed;
    return all;
  }

 private:
  struct File {
    std::atomic<int64_t> missing = 0, overflowed = 0;
  };

  TensorWriter& writer_;
  ConversionJournal* const journal_;  // Null: not resumable.
  std::vector<File> files_;
};

// Complete files count as done.
std::vector<size_t> MissingTargets(const ConvertPlan& plan, const TensorWriter& writer,
                                   ConversionProgress* progress) {
  std::vector<size_t> missing;
  for (size_t i = 0; i < plan.targets.size(); ++i) {
    if (!writer.IsComplete(writer.FileOf(i))) {
      missing.push_back(i);
      continue;
    }
    progress->bytes += plan.targets[i].bytes();
    ++progress->tensors;
  }
  return missing;
}

absl::Status Fill(const ConversionOptions& conversion, const ConvertPlan& plan, const TensorReader& source,
                  int threads, const std::function<bool()>& stopped, TensorWriter* writer, Files* files,
                  ConversionProgress* progress) {
  const std::vector<size_t> missing = MissingTargets(plan, *writer, progress);
  return ParallelFor(missing.size(), threads, stopped, [&](size_t i) -> absl::Status {
    const ConvertTarget& target = plan.targets[missing[i]];
    TensorConverter converter(source, *target.piece.type, conversion.merge, HeadRows(conversion.model));
    FSDPD_RETURN_IF_ERROR(Carry(plan, target, &converter, writer, missing[i]));
    progress->bytes += target.bytes();
    ++progress->tensors;
    return files->Wrote(missing[i], converter.overflowed());
  });
}

}  // namespace

absl::StatusOr<ConversionResult> Convert(const ConversionOptions& conversion, int threads,
                                         const std::function<bool()>& stopped, ConversionProgress* progress) {
  FSDPD_CHECK(CanCast(*conversion.type));
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<TensorReader> source, OpenStore(conversion.source));
  FSDPD_ASSIGN_OR_RETURN(ConvertPlan plan, PlanConversion(*source, conversion));
  ConversionResult result;
  result.violations = std::move(plan.violations);
  if (!result.violations.empty()) return result;
  result.left_out = std::move(plan.left_out);
  result.bytes = plan.bytes();
  result.tensors = plan.tensors();
  progress->of_bytes = result.bytes;
  progress->of_tensors = static_cast<int64_t>(plan.targets.size());
  FSDPD_RETURN_IF_ERROR(CheckTargetIsOutside(conversion));
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<PartDirectory> directory,
                         PartDirectory::Create(conversion.target, conversion.mark_name, conversion.attempt));
  std::unique_ptr<ConversionJournal> journal;
  std::vector<CompleteFile> whole;
  if (conversion.resumes) {
    FSDPD_ASSIGN_OR_RETURN(ConversionArguments arguments, ArgumentsOf(conversion, plan));
    FSDPD_ASSIGN_OR_RETURN(journal, ConversionJournal::Open(directory.get(), std::move(arguments),
                                                            conversion.anew, threads, stopped));
    for (const JournaledFile& found : journal->found()) {
      whole.push_back(found.file);
      result.bytes_found += found.file.bytes;
      result.overflowed += found.overflowed;
    }
    result.files_found = static_cast<int64_t>(whole.size());
  } else {
    FSDPD_RETURN_IF_ERROR(directory->KeepOnly({}));
  }
  FSDPD_RETURN_IF_ERROR(CheckFreeSpace(conversion.target, result.bytes - result.bytes_found));
  FSDPD_ASSIGN_OR_RETURN(std::unique_ptr<TensorWriter> writer,
                         MakeWriter(conversion, plan, directory->path(), whole));
  Files files(writer.get(), plan, journal.get());
  FSDPD_RETURN_IF_ERROR(Fill(conversion, plan, *source, threads, stopped, writer.get(), &files, progress));
  if (conversion.to == StoreFormat::kTorchDist)
    FSDPD_RETURN_IF_ERROR(WriteMegatronFiles(directory->path(), plan.common, plan.adam));
  FSDPD_RETURN_IF_ERROR(writer->Finish());
  result.files = writer->files();
  result.overflowed += files.overflowed();
  writer.reset();
  if (journal != nullptr) FSDPD_RETURN_IF_ERROR(journal->Remove());
  if (!conversion.mark_name.empty())
    FSDPD_RETURN_IF_ERROR(ReplaceFile(directory->path(), conversion.mark_name, conversion.mark));
  if (conversion.may_commit) FSDPD_RETURN_IF_ERROR(conversion.may_commit());
  FSDPD_RETURN_IF_ERROR(directory->Commit());
  return result;
}

}  // namespace fsdpd
