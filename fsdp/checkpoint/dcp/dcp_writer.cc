#include "fsdp/checkpoint/dcp/dcp_writer.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/errno_status.h"
#include "base/ids.h"
#include "base/log.h"
#include "fsdp/checkpoint/dcp/dcp_metadata.h"
#include "fsdp/checkpoint/format/crc32.h"
#include "fsdp/checkpoint/format/durable_file.h"
#include "fsdp/checkpoint/format/torch_save.h"

namespace fsdpd {
namespace {

// Checksummed and then written while still in the cache.
constexpr int64_t kStretch = 1 << 20;
constexpr size_t kMaxFaultsTold = 5;
constexpr char kPart[] = ".part";

iovec PieceOf(const void* bytes, int64_t size) {
  return {const_cast<void*>(bytes), static_cast<size_t>(size)};
}
iovec PieceOf(const std::string& bytes) { return PieceOf(bytes.data(), static_cast<int64_t>(bytes.size())); }

absl::Status CheckOpen(const std::string& directory) {
  const std::string metadata = absl::StrCat(directory, "/", kDcpMetadataName);
  if (access(metadata.c_str(), F_OK) != 0) {
    // Only a missing file means not committed; an unresponsive server does not.
    return errno == ENOENT ? absl::OkStatus() : ErrnoStatus(absl::StrCat("stat ", metadata));
  }
  return absl::FailedPreconditionError(absl::StrCat(directory, ": already has a committed checkpoint"));
}

absl::Status RemoveWhere(const std::string& directory,
                         const std::function<bool(const std::string& name)>& goes) {
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (!goes(entry->path().filename().string())) continue;
    FSDPD_RETURN_IF_ERROR(RemoveFile(entry->path().string()));
  }
  return error ? ErrnoStatus(absl::StrCat("list ", directory), error.value()) : absl::OkStatus();
}

// Removes .part files that earlier attempts left for this file.
absl::Status RemoveParts(const std::string& directory, const std::string& name) {
  return RemoveWhere(directory, [&](const std::string& found) {
    return absl::StartsWith(found, name + ".") && absl::EndsWith(found, kPart);
  });
}

// Removes files of earlier attempts, complete or not, that are not part of this checkpoint.
absl::Status RemoveFilesBeside(const std::string& directory, const DcpSums& named) {
  return RemoveWhere(directory, [&](const std::string& found) {
    const bool of_a_rank =
        absl::StartsWith(found, "__") && (absl::EndsWith(found, ".distcp") || absl::EndsWith(found, kPart));
    return of_a_rank && named.count(found) == 0;
  });
}

}  // namespace

DcpWriter::DcpWriter(std::string directory, std::string part_path, const DcpFile& layout, int fd)
    : directory_(std::move(directory)),
      path_(absl::StrCat(directory_, "/", layout.name)),
      part_path_(std::move(part_path)),
      layout_(layout),
      fd_(fd),
      crc32_(layout.pieces.size()) {}

DcpWriter::~DcpWriter() {
  // Frees the reserved space of an unfinished file. A killed process leaves its file to the next Create().
  if (!finished_) unlink(part_path_.c_str());
  close(fd_);
}

absl::StatusOr<std::unique_ptr<DcpWriter>> DcpWriter::Create(const std::string& directory,
                                                             const DcpFile& layout) {
  FSDPD_CHECK(IsPlainFileName(layout.name));
  FSDPD_RETURN_IF_ERROR(CheckOpen(directory));
  FSDPD_RETURN_IF_ERROR(RemoveParts(directory, layout.name));
  const std::string part_path = absl::StrCat(directory, "/", layout.name, ".", NewToken(), kPart);
  const int fd = open(part_path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return ErrnoStatus(absl::StrCat("create ", part_path));
  std::unique_ptr<DcpWriter> writer(new DcpWriter(directory, part_path, layout, fd));
  FSDPD_RETURN_IF_ERROR(ReserveBytes(fd, part_path, layout.bytes));
  for (size_t i = 0; i < layout.values.size(); ++i)
    FSDPD_RETURN_IF_ERROR(WriteAt(fd, part_path, layout.value_begins[i], {PieceOf(layout.values[i].record)}));
  return writer;
}

absl::Status DcpWriter::Write(size_t piece, const void* numbers) {
  const auto* bytes = static_cast<const char*>(numbers);
  return Write(piece, [bytes](int64_t begin, int64_t) { return bytes + begin; });
}

absl::Status DcpWriter::Write(size_t piece, const MakeNumbers& numbers) {
  const DcpPiece& written = layout_.pieces[piece];
  const TorchSaveFrame frame = FrameOf(*written.type, written.at.sizes);
  const auto head_bytes = static_cast<int64_t>(frame.head.size());
  int64_t at = layout_.piece_begins[piece];
  uint32_t data_crc32 = 0;
  std::vector<iovec> pending = {PieceOf(frame.head)};
  for (int64_t done = 0; done < frame.data_bytes;) {
    const int64_t stretch = std::min(kStretch, frame.data_bytes - done);
    const auto* bytes = static_cast<const char*>(numbers(done, stretch));
    data_crc32 = Crc32(bytes, stretch, data_crc32);
    pending.push_back(PieceOf(bytes, stretch));
    done += stretch;
    if (done == frame.data_bytes) break;  // Together with the tail.
    const int64_t next = layout_.piece_begins[piece] + head_bytes + done;
    FSDPD_RETURN_IF_ERROR(WriteAt(fd_, part_path_, at, std::move(pending)));
    pending.clear();
    at = next;
  }
  const std::string tail = TailOf(*written.type, written.at.sizes, data_crc32);
  FSDPD_CHECK(static_cast<int64_t>(tail.size()) == frame.tail_bytes);
  pending.push_back(PieceOf(tail));
  FSDPD_RETURN_IF_ERROR(WriteAt(fd_, part_path_, at, std::move(pending)));
  const uint32_t crc32 = Crc32Joined(Crc32(frame.head.data(), head_bytes), data_crc32, frame.data_bytes);
  crc32_[piece] = Crc32(tail.data(), frame.tail_bytes, crc32);
  return absl::OkStatus();
}

absl::StatusOr<DcpSum> DcpWriter::Finish() {
  DcpSum sum;
  const std::string gap(64, '\0');
  const auto append = [&](int64_t begin, int64_t bytes, uint32_t crc32) {
    FSDPD_CHECK(begin - sum.bytes < static_cast<int64_t>(gap.size()));
    sum.crc32 = Crc32Joined(Crc32(gap.data(), begin - sum.bytes, sum.crc32), crc32, bytes);
    sum.bytes = begin + bytes;
  };
  for (size_t i = 0; i < layout_.values.size(); ++i) {
    const std::string& record = layout_.values[i].record;
    const auto bytes = static_cast<int64_t>(record.size());
    append(layout_.value_begins[i], bytes, Crc32(record.data(), bytes));
  }
  for (size_t i = 0; i < crc32_.size(); ++i) {
    FSDPD_CHECK(crc32_[i].has_value());
    append(layout_.piece_begins[i], layout_.piece_bytes[i], *crc32_[i]);
  }
  FSDPD_CHECK(sum.bytes == layout_.bytes);
  if (fsync(fd_) != 0) return ErrnoStatus(absl::StrCat("fsync ", part_path_));
  FSDPD_RETURN_IF_ERROR(CheckOpen(directory_));
  if (rename(part_path_.c_str(), path_.c_str()) != 0) return ErrnoStatus(absl::StrCat("rename ", part_path_));
  finished_ = true;
  return sum;
}

absl::Status CommitDcp(const std::string& directory, const std::vector<const DcpFile*>& files,
                       const std::vector<DcpSum>& sums) {
  FSDPD_CHECK(files.size() == sums.size());
  FSDPD_RETURN_IF_ERROR(CheckOpen(directory));
  FSDPD_ASSIGN_OR_RETURN(const DcpIndex index, IndexOf(files));
  if (const DcpViolations violations = CheckIndex(index); !violations.empty()) {
    std::vector<std::string> told;
    for (size_t i = 0; i < std::min(violations.size(), kMaxFaultsTold); ++i) {
      told.push_back(absl::StrCat(violations[i].where, ": ", violations[i].what));
    }
    return absl::FailedPreconditionError(
        absl::StrCat("incomplete checkpoint: ", violations.count(), " errors: ", absl::StrJoin(told, "; ")));
  }
  DcpSums named;
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string path = absl::StrCat(directory, "/", files[i]->name);
    struct stat info;
    if (stat(path.c_str(), &info) != 0) return ErrnoStatus(absl::StrCat("stat ", path));
    if (info.st_size != files[i]->bytes || sums[i].bytes != files[i]->bytes) {
      return absl::DataLossError(absl::StrCat(path, ": wrong file size (got ", info.st_size,
                                              " bytes, its rank wrote ", sums[i].bytes, ", its layout has ",
                                              files[i]->bytes, ")"));
    }
    named[files[i]->name] = sums[i];
  }
  if (const absl::Status left = RemoveFilesBeside(directory, named); !left.ok())
    LogWarning("%s", left.message());  // They do no harm.
  const std::string metadata = MetadataOf(index);
  const auto bytes = static_cast<int64_t>(metadata.size());
  named[kDcpMetadataName] = {bytes, Crc32(metadata.data(), bytes)};
  FSDPD_RETURN_IF_ERROR(ReplaceFile(directory, kDcpSumsName, SumsText(named)));
  // Make the names of all files durable before .metadata, whose rename commits the checkpoint.
  FSDPD_RETURN_IF_ERROR(SyncDirectory(directory));
  FSDPD_RETURN_IF_ERROR(ReplaceFile(directory, kDcpMetadataName, metadata));
  const absl::Status synced = SyncDirectory(directory);
  if (synced.ok()) return synced;
  // Durability of the rename is unknown: remove the file, so that a reported failure never leaves a
  // checkpoint.
  const std::string path = absl::StrCat(directory, "/", kDcpMetadataName);
  if (unlink(path.c_str()) == 0) return synced;
  return absl::Status(synced.code(), absl::StrCat(synced.message(), "; the checkpoint is visible anyway: ",
                                                  ErrnoStatus(absl::StrCat("remove ", path)).message()));
}

}  // namespace fsdpd
