#include "fsdp/checkpoint/hf/hf_store.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/errno_status.h"
#include "base/json_quote.h"
#include "base/spec_text/located_violation.h"
#include "fsdp/checkpoint/format/crc32.h"
#include "fsdp/checkpoint/format/durable_file.h"
#include "fsdp/checkpoint/hf/hf_contents.h"
#include "fsdp/checkpoint/hf/safetensors.h"
#include "fsdp/data/input_file.h"

namespace fsdpd {
namespace {

constexpr char kPeftPickledName[] = "adapter_model.bin";
constexpr size_t kMaxNamedAdapters = 3;  // In a message.

// Sampled blocks per file: milliseconds for a model with hundreds of files.
constexpr int64_t kSamples = 8, kSampleBytes = 4096;

// ---- Reading.

// Weights of another training run have equal sizes and headers, so blocks of the data are sampled.
absl::Status AddTraits(const HfFile& file, std::vector<std::string>* lines) {
  const InputFile& input = *file.input;
  const auto add_sum = [&](const std::string& what, int64_t begin, int64_t bytes) -> absl::Status {
    FSDPD_ASSIGN_OR_RETURN(const uint32_t crc32, Crc32Of(input.Reader(), begin, bytes));
    lines->push_back(absl::StrFormat("%s: %s = checksum %08x", file.name, what, crc32));
    return absl::OkStatus();
  };
  lines->push_back(absl::StrCat(file.name, ": size = ", input.size()));
  FSDPD_RETURN_IF_ERROR(add_sum("head", 0, file.head_bytes));
  const int64_t numbers = input.size() - file.head_bytes;
  const int64_t bytes = std::min(numbers, kSampleBytes), last = numbers - bytes;
  const int64_t samples = last == 0 ? std::min<int64_t>(bytes, 1) : kSamples;
  for (int64_t i = 0; i < samples; ++i) {
    const int64_t begin = file.head_bytes + last * i / std::max<int64_t>(samples - 1, 1);
    FSDPD_RETURN_IF_ERROR(add_sum(absl::StrCat("bytes ", begin, " to ", begin + bytes - 1), begin, bytes));
  }
  return absl::OkStatus();
}

class HfTensorReader : public TensorReader {
 public:
  // REQUIRES: `contents` has no violations.
  explicit HfTensorReader(HfContents contents) : contents_(std::move(contents)) {
    std::vector<StoredTensor> stored;
    for (const auto& [entry, file] : contents_.tensors)
      stored.push_back({entry.name, entry.type, entry.shape, entry.bytes});
    SetTensors(std::move(stored));  // Already sorted by name.
  }

  absl::Status ReadRun(size_t tensor, int64_t begin, int64_t count, void* out) const override {
    const SafetensorsEntry& entry = contents_.tensors[tensor].entry;
    const int64_t width = entry.type->bytes;
    return FileOf(tensor).Read(entry.begin + begin * width, count * width, out);
  }

  absl::Status ReadPart(size_t tensor, const Rectangle& part, void* out) const override {
    const SafetensorsEntry& entry = contents_.tensors[tensor].entry;
    const int64_t width = entry.type->bytes;
    const Rectangle whole = {std::vector<int64_t>(entry.shape.size()), entry.shape};
    Runs runs(part, whole, part);
    for (bool more = !IsEmpty(part); more; more = runs.Next()) {
      FSDPD_RETURN_IF_ERROR(FileOf(tensor).Read(entry.begin + runs.from() * width, runs.length() * width,
                                                static_cast<char*>(out) + runs.to() * width));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> Traits() const override {
    std::vector<std::string> lines;
    for (const HfFile& file : contents_.files) FSDPD_RETURN_IF_ERROR(AddTraits(file, &lines));
    return lines;
  }

  absl::Status CheckUnchanged() const override {
    for (const HfFile& file : contents_.files) FSDPD_RETURN_IF_ERROR(file.input->CheckUnchanged());
    return absl::OkStatus();
  }

 private:
  const InputFile& FileOf(size_t tensor) const {
    return *contents_.files[contents_.tensors[tensor].file].input;
  }

  const HfContents contents_;
};

// ---- Writing.

class HfTensorWriter : public TensorWriter {
 public:
  HfTensorWriter(std::string directory, std::vector<size_t> begins, std::string config,
                 const HfFileNames& names)
      : TensorWriter(std::move(begins)),
        directory_(std::move(directory)),
        config_(std::move(config)),
        names_(names) {}

  ~HfTensorWriter() override {
    for (const File& file : files_) {
      if (file.fd < 0) continue;
      close(file.fd);
      unlink(file.part_path.c_str());
    }
  }

  absl::Status Create(const std::vector<StoredTensor>& tensors, const std::vector<CompleteFile>& whole) {
    for (const StoredTensor& tensor : tensors) {
      entries_.push_back({tensor.name, tensor.type, tensor.shape, 0, tensor.bytes});
      bytes_ += tensor.bytes;
      numbers_ += tensor.numbers();
    }
    crc32_.resize(entries_.size());
    for (size_t number = 0; number < begins_.size(); ++number) {
      const auto begin = entries_.begin() + static_cast<int64_t>(begins_[number]);
      std::vector<SafetensorsEntry> here(
          begin, entries_.begin() + static_cast<int64_t>(EndOf(number, entries_.size())));
      std::string head = LayOutSafetensors(&here);
      std::copy(here.begin(), here.end(), begin);
      const int64_t bytes =
          here.empty() ? static_cast<int64_t>(head.size()) : here.back().begin + here.back().bytes;
      const std::string name = NameOf(number);
      files_.push_back({name, absl::StrCat(directory_, "/", name, ".part"), std::move(head), bytes});
      if (FindComplete(whole, name, bytes) == nullptr) FSDPD_RETURN_IF_ERROR(Begin(&files_.back()));
    }
    return absl::OkStatus();
  }

  absl::Status Write(size_t tensor, const void* numbers) override {
    const SafetensorsEntry& entry = entries_[tensor];
    const File& file = files_[FileOf(tensor)];
    FSDPD_CHECK(file.fd >= 0);
    crc32_[tensor] = Crc32(numbers, entry.bytes);
    return WriteAt(file.fd, file.part_path, entry.begin,
                   {{const_cast<void*>(numbers), static_cast<size_t>(entry.bytes)}});
  }

  bool IsComplete(size_t file) const override { return files_[file].fd < 0; }

  absl::StatusOr<CompleteFile> FinishFile(size_t number) override {
    File& file = files_[number];
    if (fsync(file.fd) != 0) return ErrnoStatus(absl::StrCat("fsync ", file.part_path));
    const std::string path = absl::StrCat(directory_, "/", file.name);
    if (rename(file.part_path.c_str(), path.c_str()) != 0)
      return ErrnoStatus(absl::StrCat("rename ", file.part_path));
    close(file.fd);
    file.fd = -1;
    // Every byte belongs to the header or to a tensor.
    uint32_t crc32 = Crc32(file.head.data(), static_cast<int64_t>(file.head.size()));
    for (size_t tensor = begins_[number]; tensor < EndOf(number, entries_.size()); ++tensor)
      crc32 = Crc32Joined(crc32, crc32_[tensor], entries_[tensor].bytes);
    return CompleteFile{file.name, file.bytes, crc32};
  }

  absl::Status Finish() override {
    FSDPD_RETURN_IF_ERROR(FinishFiles());
    if (files_.size() > 1) FSDPD_RETURN_IF_ERROR(ReplaceFile(directory_, kHfIndexName, IndexText()));
    if (!config_.empty()) FSDPD_RETURN_IF_ERROR(ReplaceFile(directory_, names_.config, config_));
    return SyncDirectory(directory_);
  }

 private:
  struct File {
    std::string name, part_path, head;
    int64_t bytes = 0;
    int fd = -1;  // -1: it is complete.
  };

  absl::Status Begin(File* file) {
    file->fd = open(file->part_path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file->fd < 0) return ErrnoStatus(absl::StrCat("create ", file->part_path));
    FSDPD_RETURN_IF_ERROR(ReserveBytes(file->fd, file->part_path, file->bytes));
    return WriteAt(file->fd, file->part_path, 0, {{const_cast<char*>(file->head.data()), file->head.size()}});
  }

  std::string NameOf(size_t number) const {
    return begins_.size() == 1
               ? names_.weights
               : absl::StrFormat("model-%05d-of-%05d.safetensors", number + 1, begins_.size());
  }

  std::string IndexText() const {
    std::map<std::string, std::string> lines;  // By name, as transformers sorts them.
    for (size_t i = 0; i < entries_.size(); ++i) {
      lines[entries_[i].name] =
          absl::StrCat("    ", JsonQuoted(entries_[i].name), ": ", JsonQuoted(files_[FileOf(i)].name));
    }
    return absl::StrCat(
        "{\n  \"metadata\": {\n    \"total_parameters\": ", numbers_, ",\n    \"total_size\": ", bytes_,
        "\n  },\n  \"weight_map\": {\n",
        absl::StrJoin(lines, ",\n",
                      [](std::string* out, const auto& line) { absl::StrAppend(out, line.second); }),
        "\n  }\n}\n");
  }

  const std::string directory_;
  const std::string config_;
  const HfFileNames names_;
  std::vector<SafetensorsEntry> entries_;
  std::vector<uint32_t> crc32_;  // By entry, for those that were written.
  std::vector<File> files_;
  int64_t bytes_ = 0, numbers_ = 0;
};

bool HasSafetensors(const std::string& directory) {
  return access(absl::StrCat(directory, "/", kHfSingleName).c_str(), F_OK) == 0 ||
         access(absl::StrCat(directory, "/", kHfIndexName).c_str(), F_OK) == 0;
}

bool HasOtherWeights(const std::string& directory) {
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (absl::StartsWith(name, "pytorch_model") || absl::EndsWith(name, ".safetensors")) return true;
  }
  return false;
}

}  // namespace

bool HasHfWeights(const std::string& directory) {
  return HasSafetensors(directory) || HasOtherWeights(directory);
}

absl::StatusOr<std::unique_ptr<TensorReader>> OpenHfDirectory(const std::string& directory) {
  absl::StatusOr<HfContents> contents = LoadHfContents(directory);
  if (absl::IsNotFound(contents.status()) && !HasSafetensors(directory) && HasOtherWeights(directory)) {
    return absl::UnimplementedError(
        absl::StrCat(directory, ": has weights but no ", kHfSingleName,
                     "; convert the weights with save_pretrained() of Transformers"));
  }
  FSDPD_RETURN_IF_ERROR(contents.status());
  FSDPD_RETURN_IF_ERROR(contents->first);
  return std::make_unique<HfTensorReader>(*std::move(contents));
}

std::string PeftProblem(const std::string& directory) {
  const auto has = [](const std::string& in, const char* name) {
    return access(absl::StrCat(in, "/", name).c_str(), F_OK) == 0;
  };
  if (has(directory, kPeftWeightsName)) return "";
  if (has(directory, kPeftPickledName)) {
    return absl::StrCat("adapters are in ", kPeftPickledName,
                        "; save them with safe_serialization=True of PEFT's save_pretrained()");
  }
  std::vector<std::string> named;
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (has(entry->path().string(), kPeftConfigName)) named.push_back(entry->path().filename().string());
  }
  if (named.empty()) return "";
  std::sort(named.begin(), named.end());
  const std::string first = named[0];
  const size_t count = named.size();
  named.resize(std::min(count, kMaxNamedAdapters));
  return Escaped(absl::StrCat("adapters are in subdirectories (", absl::StrJoin(named, ", "),
                              count > named.size() ? ", ..." : "", "); name one of them, ", directory, "/",
                              first));
}

absl::StatusOr<std::unique_ptr<TensorReader>> OpenPeftDirectory(const std::string& directory) {
  absl::StatusOr<HfContents> loaded = LoadHfContents(directory, /*adapters=*/true);
  if (const std::string problem = PeftProblem(directory);
      absl::IsNotFound(loaded.status()) && !problem.empty())
    return absl::NotFoundError(absl::StrCat(directory, ": ", problem));
  FSDPD_ASSIGN_OR_RETURN(HfContents contents, std::move(loaded));
  FSDPD_RETURN_IF_ERROR(contents.first);
  return std::make_unique<HfTensorReader>(std::move(contents));
}

absl::StatusOr<std::unique_ptr<TensorWriter>> MakeHfWriter(const std::string& directory,
                                                           const std::vector<StoredTensor>& tensors,
                                                           int64_t file_bytes, const std::string& config,
                                                           const std::vector<CompleteFile>& whole,
                                                           const HfFileNames& names) {
  std::vector<int64_t> bytes;
  for (const StoredTensor& tensor : tensors) bytes.push_back(tensor.bytes);
  auto writer = std::make_unique<HfTensorWriter>(directory, FileBegins(bytes, file_bytes), config, names);
  FSDPD_RETURN_IF_ERROR(writer->Create(tensors, whole));
  return writer;
}

}  // namespace fsdpd
