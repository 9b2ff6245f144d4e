#include "fsdp/checkpoint/hf/hf_contents.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/parallel_for.h"
#include "base/spec_text/located_violation.h"
#include "fsdp/checkpoint/dcp/dcp_contents.h"
#include "fsdp/checkpoint/format/json.h"

namespace fsdpd {
namespace {

constexpr int64_t kMaxIndexBytes = JsonLimits().bytes;
constexpr int64_t kStretch = 4 << 20;

// By file: the tensors that the index assigns to it.
using Named = std::map<std::string, std::set<std::string>>;

class Look {
 public:
  Look(const std::string& directory, bool adapters) : directory_(directory), adapters_(adapters) {}

  absl::StatusOr<HfContents> Run() {
    const std::string path = PathOf(kHfIndexName);
    const absl::StatusOr<std::unique_ptr<InputFile>> index = InputFile::Open(path);
    if (adapters_) {
      FSDPD_RETURN_IF_ERROR(InputFile::Open(PathOf(kPeftWeightsName)).status());
      FSDPD_RETURN_IF_ERROR(AddFile(kPeftWeightsName, nullptr));
    } else if (absl::IsNotFound(index.status())) {
      const absl::Status single = InputFile::Open(PathOf(kHfSingleName)).status();
      const bool peft = absl::IsNotFound(single) && InputFile::Open(PathOf(kPeftWeightsName)).ok();
      if (!peft) FSDPD_RETURN_IF_ERROR(single);
      FSDPD_RETURN_IF_ERROR(AddFile(peft ? kPeftWeightsName : kHfSingleName, nullptr));
    } else {
      FSDPD_RETURN_IF_ERROR(index.status());
      Named named;
      FSDPD_RETURN_IF_ERROR(ReadIndex(**index, &named));
      for (const auto& [name, tensors] : named) FSDPD_RETURN_IF_ERROR(AddFile(name, &tensors));
    }
    std::sort(contents_.tensors.begin(), contents_.tensors.end(), [](const HfTensor& a, const HfTensor& b) {
      return std::tie(a.entry.name, a.file) < std::tie(b.entry.name, b.file);
    });
    return std::move(contents_);
  }

 private:
  std::string PathOf(const std::string& name) const { return absl::StrCat(directory_, "/", name); }

  // `file`: in the directory; `where`: within the file, or empty.
  void AddViolation(const std::string& file, const std::string& where, const std::string& what,
                    absl::StatusCode code = absl::StatusCode::kDataLoss) {
    const std::string in_file = where.empty() ? what : absl::StrCat(where, ": ", what);
    contents_.first.Update(absl::Status(code, Escaped(absl::StrCat(PathOf(file), ": ", in_file))));
    contents_.violations.Add(file, in_file);
  }

  absl::Status ReadIndex(const InputFile& file, Named* named) {
    if (file.size() > kMaxIndexBytes) {
      AddViolation(kHfIndexName, "", "is too large for an index");
      return absl::OkStatus();
    }
    FSDPD_ASSIGN_OR_RETURN(const std::string text, file.ReadAll());
    const absl::StatusOr<JsonValue> index = ParseJson(text);
    const JsonValue* map = index.ok() ? index->Find("weight_map") : nullptr;
    if (!index.ok()) {
      AddViolation(kHfIndexName, "", std::string(index.status().message()));
    } else if (map == nullptr || map->kind != JsonValue::Kind::kObject) {
      AddViolation(kHfIndexName, "", "has no weight_map");
    }
    for (size_t i = 0; map != nullptr && i < map->keys.size(); ++i) {
      const JsonValue& of = map->items[i];
      if (of.kind == JsonValue::Kind::kText && IsPlainFileName(of.text)) {
        (*named)[of.text].insert(map->keys[i]);
      } else {
        AddViolation(kHfIndexName, "", absl::StrCat(map->keys[i], " has an invalid file name"));
      }
    }
    return absl::OkStatus();
  }

  // `named`: the tensors that the file must have; null: any.
  absl::Status AddFile(const std::string& name, const std::set<std::string>* named) {
    contents_.files.push_back({name, nullptr, 0});
    absl::StatusOr<std::unique_ptr<InputFile>> opened = InputFile::Open(PathOf(name));
    if (!opened.ok()) {
      if (!IsDefectOfCheckpoint(opened.status())) return opened.status();
      contents_.violations.Add(name, WithoutPath(opened.status(), PathOf(name)));
      contents_.first.Update(opened.status());
      return absl::OkStatus();
    }
    const std::shared_ptr<const InputFile> file = *std::move(opened);
    FSDPD_ASSIGN_OR_RETURN(SafetensorsContents head, InspectSafetensors(file->size(), file->Reader()));
    contents_.files.back().input = file;
    contents_.files.back().head_bytes = head.head_bytes;
    if (!head.first.ok()) {
      contents_.first.Update(
          absl::Status(head.first.code(), absl::StrCat(PathOf(name), ": ", head.first.message())));
    }
    for (const DcpViolation& violation : head.violations) AddViolation(name, violation.where, violation.what);
    std::set<std::string> found;
    for (SafetensorsEntry& entry : head.entries) {
      found.insert(entry.name);
      const auto [first, is_new] = file_of_.emplace(entry.name, name);
      if (!is_new) AddViolation(name, entry.name, absl::StrCat("is also in ", first->second));
      contents_.tensors.push_back({std::move(entry), contents_.files.size() - 1});
    }
    // Do not report missing tensors if the header is incomplete.
    if (named == nullptr || !head.first.ok()) return absl::OkStatus();
    for (const std::string& tensor : *named) {
      if (found.count(tensor) == 0)
        AddViolation(name, "", absl::StrCat("lacks ", tensor, ", which the index lists"));
    }
    return absl::OkStatus();
  }

  const std::string directory_;
  const bool adapters_;
  std::map<std::string, std::string> file_of_;  // By tensor: the first file that has it.
  HfContents contents_;
};

absl::Status ReadAll(const HfFile& file, const std::function<bool()>& stopped) {
  std::vector<char> stretch(std::min(kStretch, file.input->size()));
  for (int64_t done = 0; done < file.input->size();) {
    if (stopped()) return absl::CancelledError("interrupted");
    const int64_t bytes = std::min(kStretch, file.input->size() - done);
    FSDPD_RETURN_IF_ERROR(file.input->Read(done, bytes, stretch.data()));
    done += bytes;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<HfContents> LoadHfContents(const std::string& directory, bool adapters) {
  return Look(directory, adapters).Run();
}

absl::Status ReadAllOf(HfContents* contents, int threads, const std::function<bool()>& stopped) {
  const std::vector<HfFile>& files = contents->files;
  std::vector<absl::Status> read(files.size());
  FSDPD_RETURN_IF_ERROR(ParallelFor(files.size(), threads, stopped, [&](size_t i) {
    if (files[i].input != nullptr) read[i] = ReadAll(files[i], stopped);
    return read[i].ok() || IsDefectOfCheckpoint(read[i]) ? absl::OkStatus() : read[i];
  }));
  for (size_t i = 0; i < files.size(); ++i) {
    if (read[i].ok()) continue;
    contents->first.Update(read[i]);
    contents->violations.Add(files[i].name, WithoutPath(read[i], files[i].input->path()));
  }
  return absl::OkStatus();
}

}  // namespace fsdpd
