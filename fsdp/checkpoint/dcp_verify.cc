#include "fsdp/checkpoint/dcp_verify.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <utility>

#include "base/check.h"
#include "fsdp/checkpoint/dcp_record.h"
#include "fsdp/checkpoint/zip.h"
#include "fsdp/data/input_file.h"

namespace fsdpd {
namespace {

constexpr int64_t kStretch = 4 << 20;

// A record of a file: a chunk of a tensor, or a value (no tensor).
struct Stored {
  const DcpTensor* tensor = nullptr;
  const DcpChunk* chunk = nullptr;
  const DcpValue* value = nullptr;

  const DcpPlace& place() const { return chunk != nullptr ? chunk->place : value->place; }
  const std::string& name() const { return tensor != nullptr ? tensor->name : value->name; }
};

// Everything about one file; what it finds is its own, so files are checked side by side.
class FileCheck {
 public:
  FileCheck(const std::string& folder, const DcpContents& contents, size_t number,
            const std::function<bool()>& stopped)
      : path_(absl::StrCat(folder, "/", contents.index.files[number])),
        name_(contents.index.files[number]),
        contents_(contents),
        number_(number),
        stopped_(stopped) {}

  std::vector<Stored> records;
  std::vector<DcpFault> faults;
  int64_t bytes_read = 0;

  void Run() {
    if (contents_.file_bytes[number_] < 0) return;  // Told already.
    absl::StatusOr<std::unique_ptr<InputFile>> opened = InputFile::Open(path_);
    if (!opened.ok()) return faults.push_back({name_, std::string(opened.status().message())});
    const std::shared_ptr<const InputFile> file = *std::move(opened);
    const bool intact = CheckSum(*file);
    for (const Stored& record : records) {
      if (stopped_()) return;
      const absl::Status status = CheckRecord(file, record, intact);
      if (!status.ok()) faults.push_back({record.name(), std::string(status.message())});
    }
  }

 private:
  // Whether all its bytes are those that were committed.
  bool CheckSum(const InputFile& file) {
    if (!contents_.sums.has_value()) return false;
    const auto sum = contents_.sums->find(name_);
    if (sum == contents_.sums->end() || sum->second.bytes != file.size()) return false;  // Told already.
    std::vector<char> stretch(std::min(kStretch, file.size()));
    uint32_t crc32 = 0;
    for (int64_t done = 0; done < file.size() && !stopped_();) {
      const int64_t bytes = std::min(kStretch, file.size() - done);
      if (const absl::Status status = file.Read(done, bytes, stretch.data()); !status.ok()) {
        faults.push_back({name_, std::string(status.message())});
        return false;
      }
      crc32 = Crc32(stretch.data(), bytes, crc32);
      done += bytes;
      bytes_read += bytes;
    }
    if (crc32 == sum->second.crc32) return true;
    if (!stopped_()) faults.push_back({name_, "is not what was committed: its checksum is another"});
    return false;
  }

  absl::Status CheckRecord(const std::shared_ptr<const InputFile>& file, const Stored& stored, bool intact) {
    const DcpPlace& place = stored.place();
    if (place.begin < 0 || place.bytes <= 0 || place.begin > file->size() ||
        place.bytes > file->size() - place.begin || !place.transform.empty()) {
      return absl::OkStatus();  // Told already.
    }
    FSDPD_ASSIGN_OR_RETURN(const DcpRecord record, DcpRecord::Open(file, place));
    if (!intact) {
      FSDPD_RETURN_IF_ERROR(record.CheckMembers());
      bytes_read += place.bytes;
    }
    if (stored.tensor == nullptr || stored.tensor->type == nullptr) return absl::OkStatus();
    return record.OpenChunk(*stored.tensor, *stored.chunk).status();
  }

  const std::string path_, name_;
  const DcpContents& contents_;
  const size_t number_;
  const std::function<bool()>& stopped_;
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

absl::StatusOr<DcpVerdict> VerifyDcp(const std::string& folder, int threads,
                                     const std::function<bool()>& stopped) {
  DcpVerdict verdict;
  FSDPD_ASSIGN_OR_RETURN(verdict.contents, LoadContents(folder));
  verdict.faults = verdict.contents.faults;
  std::vector<std::unique_ptr<FileCheck>> checks;
  for (size_t i = 0; i < verdict.contents.index.files.size(); ++i) {
    checks.push_back(std::make_unique<FileCheck>(folder, verdict.contents, i, stopped));
  }
  HandOut(verdict.contents.index, &checks);
  std::atomic<size_t> next = 0;
  std::vector<std::thread> readers;
  for (int i = 0; i < threads; ++i) {
    readers.emplace_back([&] {
      for (size_t number = next++; number < checks.size(); number = next++) checks[number]->Run();
    });
  }
  for (std::thread& reader : readers) reader.join();
  if (stopped()) return absl::CancelledError("interrupted");
  for (const std::unique_ptr<FileCheck>& check : checks) {
    verdict.faults.insert(verdict.faults.end(), check->faults.begin(), check->faults.end());
    verdict.bytes_read += check->bytes_read;
  }
  return verdict;
}

}  // namespace fsdpd
