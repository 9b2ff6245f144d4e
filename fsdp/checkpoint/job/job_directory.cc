#include "fsdp/checkpoint/job/job_directory.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/strip.h>
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/check.h"
#include "base/errno_status.h"
#include "fsdp/checkpoint/dcp/dcp_metadata.h"
#include "fsdp/checkpoint/dcp/dcp_sums.h"
#include "fsdp/checkpoint/format/directory_path.h"
#include "fsdp/checkpoint/format/durable_file.h"

namespace fsdpd {
namespace {

constexpr char kPrefix[] = "iter_";
constexpr char kNewest[] = "latest_checkpointed_iteration.txt";

// -1: not a checkpoint of ours.
int64_t StepOf(const std::string& dir, const std::string& name) {
  absl::string_view digits = name;
  int64_t step = -1;
  if (!absl::ConsumePrefix(&digits, kPrefix) || !absl::SimpleAtoi(digits, &step)) return -1;
  return step >= 0 && CheckpointPath(dir, step) == absl::StrCat(dir, "/", name) ? step : -1;
}

absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error == std::errc::no_such_file_or_directory) return names;
  if (error) return DirectoryError(absl::StrCat("list ", directory), error.value());
  return names;
}

// Whether a killed save or commit may have left it.
bool IsUnfinished(const std::string& name) {
  if (absl::StartsWith(name, "__")) return absl::EndsWith(name, ".part");
  return absl::EndsWith(name, kTemporarySuffix) &&
         (absl::StartsWith(name, kDcpMetadataName) || absl::StartsWith(name, kDcpSumsName));
}

// "hf.2.part".
bool IsUnfinishedExport(absl::string_view name) {
  const bool is_export = std::any_of(
      std::begin(kExportNames), std::end(kExportNames),
      [&name](const char* format) { return absl::ConsumePrefix(&name, absl::StrCat(format, ".")); });
  return is_export && absl::ConsumeSuffix(&name, ".part") && !name.empty() &&
         std::all_of(name.begin(), name.end(), absl::ascii_isdigit);
}

// Whether it is a checkpoint file, except for .metadata, which is removed first.
bool IsOfCheckpoint(const std::string& name) {
  return IsUnfinished(name) || (absl::StartsWith(name, "__") && absl::EndsWith(name, ".distcp"));
}

absl::Status RemoveCheckpoint(const std::string& path) {
  FSDPD_RETURN_IF_ERROR(RemoveFile(absl::StrCat(path, "/", kDcpMetadataName)));
  FSDPD_RETURN_IF_ERROR(SyncDirectory(path));
  FSDPD_RETURN_IF_ERROR(RemoveFile(absl::StrCat(path, "/", kDcpSumsName)));
  FSDPD_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(path));
  for (const std::string& name : names) {
    if (IsOfCheckpoint(name)) FSDPD_RETURN_IF_ERROR(RemoveFile(absl::StrCat(path, "/", name)));
  }
  if (rmdir(path.c_str()) == 0 || errno == ENOENT || errno == ENOTEMPTY || errno == EEXIST)
    return absl::OkStatus();
  return ErrnoStatus(absl::StrCat("remove ", path));
}

}  // namespace

std::string CheckpointPath(const std::string& dir, int64_t step) {
  return absl::StrFormat("%s/%s%07d", dir, kPrefix, step);
}

bool IsCheckpoint(const std::string& path) {
  if (access(absl::StrCat(path, "/", kDcpMetadataName).c_str(), F_OK) == 0) return true;
  return errno != ENOENT && errno != ENOTDIR;
}

absl::StatusOr<std::vector<FoundCheckpoint>> ListCheckpoints(const std::string& dir) {
  FSDPD_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(dir));
  std::vector<FoundCheckpoint> found;
  for (const std::string& name : names) {
    const int64_t step = StepOf(dir, name);
    if (step < 0) continue;
    const std::string path = CheckpointPath(dir, step);
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) continue;
    found.push_back({step, path, IsCheckpoint(path)});
  }
  std::sort(found.begin(), found.end(),
            [](const FoundCheckpoint& a, const FoundCheckpoint& b) { return a.step > b.step; });
  return found;
}

absl::Status RecordNewest(const std::string& dir, int64_t step) {
  FSDPD_RETURN_IF_ERROR(ReplaceFile(dir, kNewest, absl::StrCat(step)));
  return SyncDirectory(dir);
}

absl::Status RemoveOld(const std::string& dir, int64_t newest, int64_t keep_last, int64_t keep_every,
                       const std::function<bool(const std::string& path)>& is_own) {
  FSDPD_CHECK(keep_last >= 1);
  FSDPD_ASSIGN_OR_RETURN(const std::vector<FoundCheckpoint> found, ListCheckpoints(dir));
  int64_t kept = 0;
  absl::Status status;
  for (const FoundCheckpoint& each : found) {
    if (each.step > newest || (each.committed && !is_own(each.path))) continue;
    if (each.committed && kept < keep_last) {
      ++kept;
      continue;
    }
    if (each.committed && keep_every > 0 && each.step % keep_every == 0) continue;
    status.Update(RemoveCheckpoint(each.path));  // Continue after a failure.
  }
  return status;
}

absl::StatusOr<int64_t> RemoveUnfinished(const std::string& dir) {
  FSDPD_ASSIGN_OR_RETURN(const std::vector<FoundCheckpoint> found, ListCheckpoints(dir));
  int64_t removed = 0;
  absl::Status status;
  for (const FoundCheckpoint& each : found) {
    const absl::StatusOr<std::vector<std::string>> names = NamesIn(each.path);
    status.Update(names.status());
    if (!names.ok()) continue;
    for (const std::string& name : *names) {
      if (!IsUnfinished(name)) continue;
      const absl::Status gone = RemoveFile(absl::StrCat(each.path, "/", name));
      status.Update(gone);
      removed += gone.ok() ? 1 : 0;
    }
    if (!each.committed) rmdir(each.path.c_str());  // Removes it if it is empty.
  }
  FSDPD_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(dir));
  for (const std::string& name : names) {
    if (!IsUnfinishedExport(name)) continue;
    std::error_code error;
    const std::string path = absl::StrCat(dir, "/", name);
    std::filesystem::remove_all(path, error);
    if (error) status.Update(ErrnoStatus(absl::StrCat("remove ", path), error.value()));
    removed += error ? 0 : 1;
  }
  FSDPD_RETURN_IF_ERROR(status);
  return removed;
}

absl::Status SetAside(const std::string& path) {
  const std::string side_stream = absl::StrCat(path, ".damaged");
  std::error_code error;
  std::filesystem::remove_all(side_stream, error);
  if (rename(path.c_str(), side_stream.c_str()) == 0) return absl::OkStatus();
  return ErrnoStatus(absl::StrCat("rename ", path, " to ", side_stream));
}

}  // namespace fsdpd
