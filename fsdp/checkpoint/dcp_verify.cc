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
  DcpFaults faults;
  int64_t unsummed_records = 0;
  absl::Status error;  // Why it could not be read, where that is no fault of the file's.

  void Run() {
    if (contents_.file_bytes[number_] < 0) return;  // Told already.
    absl::StatusOr<std::unique_ptr<InputFile>> opened = InputFile::Open(path_);
    if (!opened.ok()) return Tell(name_, opened.status());
    const std::shared_ptr<const InputFile> file = *std::move(opened);
    const bool intact = CheckSum(*file);
    std::stable_sort(records.begin(), records.end(),
                     [](const Stored& a, const Stored& b) { return a.place().begin < b.place().begin; });
    int64_t end = 0;  // Of the records that were looked into.
    for (const Stored& record : records) {
      if (stopped_() || !error.ok()) return;
      const DcpPlace& place = record.place();
      if (place.begin < end || place.bytes <= 0 || place.begin > file->size() ||
          place.bytes > file->size() - place.begin || !place.transform.empty()) {
        continue;  // Told already; many could share one, and it would be read for each.
      }
      end = place.begin + place.bytes;
      Tell(record.name(), CheckRecord(file, record, intact));
    }
  }

 private:
  void Tell(const std::string& where, const absl::Status& status) {
    if (status.ok()) return;
    if (IsFaultOfFile(status)) {
      faults.Add(where, std::string(status.message()));
    } else {
      error = status;
    }
  }

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
        Tell(name_, status);
        return false;
      }
      crc32 = Crc32(stretch.data(), bytes, crc32);
      done += bytes;
    }
    if (crc32 == sum->second.crc32) return true;
    if (!stopped_()) faults.Add(name_, "is not what was committed: its checksum is another");
    return false;
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
                                     const std::function<bool()>& stopped, DcpShare share) {
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
      for (size_t number = next++; number < checks.size(); number = next++) {
        if (static_cast<int64_t>(number) % share.of == share.part) checks[number]->Run();
      }
    });
  }
  for (std::thread& reader : readers) reader.join();
  if (stopped()) return absl::CancelledError("interrupted");
  for (const std::unique_ptr<FileCheck>& check : checks) {
    FSDPD_RETURN_IF_ERROR(check->error);
    verdict.faults.Add(check->faults);
    verdict.unsummed_records += check->unsummed_records;
  }
  return verdict;
}

}  // namespace fsdpd
