#include "fsdp/checkpoint/dcp/dcp_verify.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/parallel_for.h"
#include "fsdp/checkpoint/dcp/dcp_record.h"
#include "fsdp/checkpoint/format/crc32.h"
#include "fsdp/data/input_file.h"

namespace fsdpd {
namespace {

// Threads divide files into stretches of this size, since a rank's data may be one large file.
constexpr int64_t kStretch = 64 << 20;

// A record of a file: a chunk of a tensor, or a value (null tensor).
struct Stored {
  const DcpTensor* tensor = nullptr;
  const DcpChunk* chunk = nullptr;
  const DcpValue* value = nullptr;

  const DcpPlace& place() const { return chunk != nullptr ? chunk->place : value->place; }
  const std::string& name() const { return tensor != nullptr ? tensor->name : value->name; }
};

// Verifies one file. Call order: SumStretch() for each stretch, on several threads, then Run().
class FileCheck {
 public:
  FileCheck(const std::string& directory, const DcpContents& contents, size_t number,
            const std::function<bool()>& stopped)
      : path_(absl::StrCat(directory, "/", contents.index.files[number])),
        name_(contents.index.files[number]),
        bytes_(contents.file_bytes[number]),
        stopped_(stopped) {
    if (!contents.sums.has_value()) return;
    const auto sum = contents.sums->find(name_);
    if (sum == contents.sums->end() || sum->second.bytes != bytes_)
      return;  // Reported in contents.violations.
    crc32_ = sum->second.crc32;
    sums_.resize((bytes_ + kStretch - 1) / kStretch);
  }

  std::vector<Stored> records;
  DcpViolations violations;
  int64_t unsummed_records = 0;

  size_t stretches() const { return sums_.size(); }

  // Returns only errors that are not defects of the file.
  absl::Status SumStretch(size_t stretch) {
    absl::StatusOr<uint32_t>& sum = sums_[stretch];
    sum = SumOf(static_cast<int64_t>(stretch) * kStretch);
    return sum.ok() || IsDefectOfCheckpoint(sum.status()) ? absl::OkStatus() : sum.status();
  }

  absl::Status Run() {
    if (bytes_ < 0) return absl::OkStatus();  // Missing: reported in contents.violations.
    absl::StatusOr<std::unique_ptr<InputFile>> opened = InputFile::Open(path_);
    if (!opened.ok()) return Tell(name_, opened.status());
    const std::shared_ptr<const InputFile> file = *std::move(opened);
    FSDPD_ASSIGN_OR_RETURN(const bool intact, CompareSum());
    std::stable_sort(records.begin(), records.end(),
                     [](const Stored& a, const Stored& b) { return a.place().begin < b.place().begin; });
    int64_t end = 0;  // End of the records examined so far.
    for (const Stored& record : records) {
      if (stopped_()) break;
      const DcpPlace& place = record.place();
      if (place.begin < end || place.bytes <= 0 || place.begin > file->size() ||
          place.bytes > file->size() - place.begin || !place.transform.empty()) {
        continue;  // Reported already; examining it could be quadratic if many overlap.
      }
      end = place.begin + place.bytes;
      FSDPD_RETURN_IF_ERROR(Tell(record.name(), CheckRecord(file, record, intact)));
    }
    return absl::OkStatus();
  }

 private:
  // Records a defect of the file; returns any other error.
  absl::Status Tell(const std::string& where, const absl::Status& status) {
    if (status.ok() || !IsDefectOfCheckpoint(status)) return status;
    violations.Add(where, std::string(status.message()));
    return absl::OkStatus();
  }

  // Opens the file per stretch: a checkpoint may have more files than the process may open.
  absl::StatusOr<uint32_t> SumOf(int64_t begin) const {
    FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<InputFile> file, InputFile::Open(path_));
    const int64_t end = std::min(begin + kStretch, bytes_);
    if (file->size() < end) return absl::DataLossError("file was truncated during verification");
    return Crc32Of(file->Reader(), begin, end - begin);
  }

  // Whether all bytes are as committed.
  absl::StatusOr<bool> CompareSum() {
    if (!crc32_.has_value()) return false;
    uint32_t crc32 = 0;
    for (size_t i = 0; i < sums_.size(); ++i) {
      if (!sums_[i].ok()) {
        FSDPD_RETURN_IF_ERROR(Tell(name_, sums_[i].status()));
        return false;
      }
      const int64_t begin = static_cast<int64_t>(i) * kStretch;
      crc32 = Crc32Joined(crc32, *sums_[i], std::min(kStretch, bytes_ - begin));
    }
    if (crc32 != *crc32_) violations.Add(name_, "checksum does not match the committed one");
    return crc32 == *crc32_;
  }

  absl::Status CheckRecord(const std::shared_ptr<const InputFile>& file, const Stored& stored, bool intact) {
    FSDPD_ASSIGN_OR_RETURN(const DcpRecord record, DcpRecord::Open(file, stored.place()));
    if (!intact) {
      FSDPD_ASSIGN_OR_RETURN(const bool summed, record.CheckMembers());
      if (!summed) ++unsummed_records;
    }
    if (stored.tensor == nullptr || stored.tensor->type == nullptr) return absl::OkStatus();
    return record.OpenChunk(*stored.tensor, *stored.chunk).status();
  }

  const std::string path_, name_;
  const int64_t bytes_;
  const std::function<bool()>& stopped_;
  std::optional<uint32_t> crc32_;  // As committed; nullopt: no checksum for this file.
  std::vector<absl::StatusOr<uint32_t>> sums_;
};

void HandOut(const DcpIndex& index, std::vector<std::unique_ptr<FileCheck>>* checks) {
  const auto give = [checks](const Stored& record) {
    if (record.place().file >= 0) (*checks)[record.place().file]->records.push_back(record);
  };
  for (const DcpTensor& tensor : index.tensors) {
    for (const DcpChunk& chunk : tensor.chunks) {
      if (!IsEmpty(chunk.at)) give({&tensor, &chunk, nullptr});
    }
  }
  for (const DcpValue& value : index.values) give({nullptr, nullptr, &value});
}

}  // namespace

absl::StatusOr<DcpVerdict> VerifyDcp(const std::string& directory, int threads,
                                     const std::function<bool()>& stopped, DcpShare share) {
  DcpVerdict verdict;
  FSDPD_ASSIGN_OR_RETURN(verdict.contents, LoadContents(directory));
  verdict.violations = verdict.contents.violations;
  std::vector<std::unique_ptr<FileCheck>> checks;
  for (size_t i = 0; i < verdict.contents.index.files.size(); ++i) {
    checks.push_back(std::make_unique<FileCheck>(directory, verdict.contents, i, stopped));
  }
  HandOut(verdict.contents.index, &checks);
  std::vector<FileCheck*> mine;
  std::vector<std::pair<FileCheck*, size_t>> stretches;
  for (size_t i = 0; i < checks.size(); ++i) {
    if (static_cast<int64_t>(i) % share.of != share.part) continue;
    mine.push_back(checks[i].get());
    for (size_t stretch = 0; stretch < checks[i]->stretches(); ++stretch)
      stretches.emplace_back(checks[i].get(), stretch);
  }
  FSDPD_RETURN_IF_ERROR(ParallelFor(stretches.size(), threads, stopped, [&](size_t i) {
    return stretches[i].first->SumStretch(stretches[i].second);
  }));
  FSDPD_RETURN_IF_ERROR(ParallelFor(mine.size(), threads, stopped, [&](size_t i) { return mine[i]->Run(); }));
  if (stopped()) return absl::CancelledError("interrupted");
  for (const FileCheck* check : mine) {
    verdict.violations.Add(check->violations);
    verdict.unsummed_records += check->unsummed_records;
  }
  return verdict;
}

}  // namespace fsdpd
