#include "fsdp/checkpoint/hf_store.h"

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
#include <set>
#include <utility>

#include "base/check.h"
#include "base/errno_status.h"
#include "base/json_quote.h"
#include "fsdp/checkpoint/dcp_index.h"
#include "fsdp/checkpoint/durable_file.h"
#include "fsdp/checkpoint/json.h"
#include "fsdp/checkpoint/safetensors.h"
#include "fsdp/checkpoint/zip.h"
#include "fsdp/data/input_file.h"

namespace fsdpd {
namespace {

constexpr char kSingleName[] = "model.safetensors";
constexpr char kIndexName[] = "model.safetensors.index.json";
constexpr int64_t kMaxIndexBytes = JsonLimits().bytes;

// ---- Reading.

// Of each file those tensors that the index says it has.
using Named = std::map<std::string, std::set<std::string>>;

absl::StatusOr<Named> ReadIndex(const InputFile& file) {
  const auto wrong = [&file](absl::string_view what) {
    return absl::DataLossError(absl::StrCat(file.path(), ": ", what));
  };
  if (file.size() > kMaxIndexBytes) return wrong("is too large for an index");
  std::string text(file.size(), '\0');
  FSDPD_RETURN_IF_ERROR(file.Read(0, file.size(), text.data()));
  const absl::StatusOr<JsonValue> index = ParseJson(text);
  if (!index.ok()) return wrong(index.status().message());
  const JsonValue* map = index->Find("weight_map");
  if (map == nullptr || map->kind != JsonValue::Kind::kObject) return wrong("has no weight_map");
  Named named;
  for (size_t i = 0; i < map->keys.size(); ++i) {
    const JsonValue& of = map->items[i];
    if (of.kind != JsonValue::Kind::kText || !IsPlainFileName(of.text)) {
      return wrong(absl::StrCat(map->keys[i], " is in no file of the folder"));
    }
    named[of.text].insert(map->keys[i]);
  }
  return named;
}

// The numbers of a rectangle as they lie one after the other in the whole tensor.
template <typename Function>
absl::Status ForEachRun(const std::vector<int64_t>& shape, const Rectangle& part, const Function& function) {
  if (IsEmpty(part)) return absl::OkStatus();
  size_t outer = shape.size();  // Dimensions before the first whose rows lie side by side.
  int64_t elements = 1;
  while (outer > 0) {
    --outer;
    elements *= part.sizes[outer];
    if (part.sizes[outer] != shape[outer]) break;
  }
  std::vector<int64_t> at(outer);
  while (true) {
    int64_t begin = 0;
    for (size_t d = 0; d < shape.size(); ++d)
      begin = begin * shape[d] + part.offsets[d] + (d < outer ? at[d] : 0);
    FSDPD_RETURN_IF_ERROR(function(begin, elements));
    size_t d = outer;
    while (d > 0 && ++at[d - 1] == part.sizes[d - 1]) at[--d] = 0;
    if (d == 0) return absl::OkStatus();
  }
}

class HfTensorReader : public TensorReader {
 public:
  explicit HfTensorReader(std::string folder) : folder_(std::move(folder)) {}

  absl::Status Open() {
    const absl::StatusOr<std::unique_ptr<InputFile>> index =
        InputFile::Open(absl::StrCat(folder_, "/", kIndexName));
    if (!index.ok() && !absl::IsNotFound(index.status())) return index.status();
    if (index.ok()) {
      FSDPD_ASSIGN_OR_RETURN(const Named named, ReadIndex(**index));
      for (const auto& [file, tensors] : named) FSDPD_RETURN_IF_ERROR(Add(file, &tensors));
    } else {
      FSDPD_RETURN_IF_ERROR(Add(kSingleName, nullptr));
    }
    std::vector<StoredTensor> stored;
    for (const auto& [name, place] : places_) {
      stored.push_back({name, place.entry.type, place.entry.shape, place.entry.bytes});
    }
    SetTensors(std::move(stored));
    return absl::OkStatus();
  }

  absl::Status ReadRun(size_t tensor, int64_t begin, int64_t count, void* out) const override {
    const StoredTensor& stored = tensors()[tensor];
    const Place& place = places_.find(stored.name)->second;
    const int64_t width = stored.type->bytes;
    return place.file->Read(place.entry.begin + begin * width, count * width, out);
  }

  absl::Status ReadPart(size_t tensor, const Rectangle& part, void* out) const override {
    const Place& place = places_.find(tensors()[tensor].name)->second;
    const int64_t width = place.entry.type->bytes;
    auto* at = static_cast<char*>(out);
    return ForEachRun(place.entry.shape, part, [&](int64_t begin, int64_t elements) {
      char* const to = at;
      at += elements * width;
      return place.file->Read(place.entry.begin + begin * width, elements * width, to);
    });
  }

 private:
  struct Place {
    std::shared_ptr<const InputFile> file;
    SafetensorsEntry entry;
  };

  // `named`: what the file must have; null: whatever is there.
  absl::Status Add(const std::string& name, const std::set<std::string>* named) {
    FSDPD_ASSIGN_OR_RETURN(std::unique_ptr<InputFile> opened,
                           InputFile::Open(absl::StrCat(folder_, "/", name)));
    const std::shared_ptr<const InputFile> file = std::move(opened);
    absl::StatusOr<std::vector<SafetensorsEntry>> entries = ReadSafetensors(
        file->size(),
        [&file](int64_t begin, int64_t size, void* out) { return file->Read(begin, size, out); });
    if (!entries.ok()) {
      return absl::Status(entries.status().code(),
                          absl::StrCat(file->path(), ": ", entries.status().message()));
    }
    size_t found = 0;
    for (SafetensorsEntry& entry : *entries) {
      found += named == nullptr ? 0 : named->count(entry.name);
      const std::string tensor = entry.name;
      if (!places_.insert({tensor, {file, std::move(entry)}}).second) {
        return absl::DataLossError(absl::StrCat(file->path(), ": ", tensor, " is in another file too"));
      }
    }
    if (named == nullptr || found == named->size()) return absl::OkStatus();
    for (const std::string& tensor : *named) {
      if (places_.count(tensor) == 0) {
        return absl::DataLossError(absl::StrCat(file->path(), ": has no ", tensor, ", which the index says"));
      }
    }
    return absl::OkStatus();
  }

  const std::string folder_;
  std::map<std::string, Place> places_;
};

// ---- Writing.

class HfTensorWriter : public TensorWriter {
 public:
  HfTensorWriter(std::string folder, std::vector<size_t> begins, std::string config)
      : folder_(std::move(folder)), begins_(std::move(begins)), config_(std::move(config)) {}

  ~HfTensorWriter() override {
    for (const File& file : files_) {
      if (file.fd < 0) continue;
      close(file.fd);
      unlink(file.part_path.c_str());
    }
  }

  absl::Status Create(const std::vector<StoredTensor>& tensors, const std::vector<WholeFile>& whole) {
    for (const StoredTensor& tensor : tensors) {
      entries_.push_back({tensor.name, tensor.type, tensor.shape, 0, tensor.bytes});
      bytes_ += tensor.bytes;
      numbers_ += tensor.numbers();
    }
    crc32_.resize(entries_.size());
    for (size_t number = 0; number < begins_.size(); ++number) {
      const auto begin = entries_.begin() + static_cast<int64_t>(begins_[number]);
      std::vector<SafetensorsEntry> here(begin, entries_.begin() + static_cast<int64_t>(EndOf(number)));
      std::string head = LayOutSafetensors(&here);
      std::copy(here.begin(), here.end(), begin);
      const int64_t bytes =
          here.empty() ? static_cast<int64_t>(head.size()) : here.back().begin + here.back().bytes;
      const std::string name = NameOf(number);
      files_.push_back({name, absl::StrCat(folder_, "/", name, ".part"), std::move(head), bytes});
      const bool is_whole = std::any_of(whole.begin(), whole.end(), [&](const WholeFile& one) {
        return one.name == name && one.bytes == bytes;
      });
      if (!is_whole) FSDPD_RETURN_IF_ERROR(Begin(&files_.back()));
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

  size_t FileOf(size_t tensor) const override {
    return std::upper_bound(begins_.begin(), begins_.end(), tensor) - begins_.begin() - 1;
  }

  bool IsWhole(size_t file) const override { return files_[file].fd < 0; }

  absl::StatusOr<WholeFile> FinishFile(size_t number) override {
    File& file = files_[number];
    if (fsync(file.fd) != 0) return ErrnoStatus(absl::StrCat("fsync ", file.part_path));
    const std::string path = absl::StrCat(folder_, "/", file.name);
    if (rename(file.part_path.c_str(), path.c_str()) != 0)
      return ErrnoStatus(absl::StrCat("rename ", file.part_path));
    close(file.fd);
    file.fd = -1;
    // Every byte is the head's or a tensor's.
    uint32_t crc32 = Crc32(file.head.data(), static_cast<int64_t>(file.head.size()));
    for (size_t tensor = begins_[number]; tensor < EndOf(number); ++tensor)
      crc32 = Crc32Joined(crc32, crc32_[tensor], entries_[tensor].bytes);
    return WholeFile{file.name, file.bytes, crc32};
  }

  absl::Status Finish() override {
    for (size_t number = 0; number < files_.size(); ++number) {
      if (files_[number].fd >= 0) FSDPD_RETURN_IF_ERROR(FinishFile(number).status());
    }
    if (files_.size() > 1) FSDPD_RETURN_IF_ERROR(ReplaceFile(folder_, kIndexName, IndexText()));
    FSDPD_RETURN_IF_ERROR(ReplaceFile(folder_, kHfConfigName, config_));
    return SyncFolder(folder_);
  }

  int64_t files() const override { return static_cast<int64_t>(files_.size()); }

 private:
  struct File {
    std::string name, part_path, head;
    int64_t bytes = 0;
    int fd = -1;  // -1: it is whole.
  };

  absl::Status Begin(File* file) {
    file->fd = open(file->part_path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file->fd < 0) return ErrnoStatus(absl::StrCat("create ", file->part_path));
    FSDPD_RETURN_IF_ERROR(ReserveBytes(file->fd, file->part_path, file->bytes));
    return WriteAt(file->fd, file->part_path, 0, {{const_cast<char*>(file->head.data()), file->head.size()}});
  }

  // Of its tensors; one more than the last.
  size_t EndOf(size_t file) const { return file + 1 < begins_.size() ? begins_[file + 1] : entries_.size(); }

  std::string NameOf(size_t number) const {
    return begins_.size() == 1
               ? kSingleName
               : absl::StrFormat("model-%05d-of-%05d.safetensors", number + 1, begins_.size());
  }

  std::string IndexText() const {
    std::map<std::string, std::string> lines;  // By name, as theirs are.
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

  const std::string folder_;
  const std::vector<size_t> begins_;
  const std::string config_;
  std::vector<SafetensorsEntry> entries_;
  std::vector<uint32_t> crc32_;  // Of each entry that was written.
  std::vector<File> files_;
  int64_t bytes_ = 0, numbers_ = 0;
};

bool HasSafetensors(const std::string& folder) {
  return access(absl::StrCat(folder, "/", kSingleName).c_str(), F_OK) == 0 ||
         access(absl::StrCat(folder, "/", kIndexName).c_str(), F_OK) == 0;
}

bool HasOtherWeights(const std::string& folder) {
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (absl::StartsWith(name, "pytorch_model") || absl::EndsWith(name, ".safetensors")) return true;
  }
  return false;
}

}  // namespace

bool HasHfWeights(const std::string& folder) { return HasSafetensors(folder) || HasOtherWeights(folder); }

absl::StatusOr<std::unique_ptr<TensorReader>> OpenHfFolder(const std::string& folder) {
  auto reader = std::make_unique<HfTensorReader>(folder);
  const absl::Status opened = reader->Open();
  if (opened.ok()) return reader;
  if (absl::IsNotFound(opened) && !HasSafetensors(folder) && HasOtherWeights(folder)) {
    return absl::UnimplementedError(absl::StrCat(folder, ": has weights and no ", kSingleName,
                                                 ": save_pretrained() of transformers makes one of them"));
  }
  return opened;
}

absl::StatusOr<std::unique_ptr<TensorWriter>> MakeHfWriter(const std::string& folder,
                                                           const std::vector<StoredTensor>& tensors,
                                                           int64_t file_bytes, const std::string& config,
                                                           const std::vector<WholeFile>& whole) {
  std::vector<int64_t> bytes;
  for (const StoredTensor& tensor : tensors) bytes.push_back(tensor.bytes);
  auto writer = std::make_unique<HfTensorWriter>(folder, FileBegins(bytes, file_bytes), config);
  FSDPD_RETURN_IF_ERROR(writer->Create(tensors, whole));
  return writer;
}

}  // namespace fsdpd
