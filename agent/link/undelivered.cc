#include "agent/link/undelivered.h"

#include <absl/strings/str_cat.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/errno_status.h"
#include "base/log.h"
#include "base/rank/frame.h"
#include "base/unique_fd.h"

namespace fsdpd {
namespace {

constexpr char kFile[] = "undelivered";
constexpr char kFileOfRelease01[] = "untold";

std::string PathIn(const std::string& work_dir, const char* file = kFile) {
  return absl::StrCat(work_dir, "/", file);
}

absl::Status WriteSynced(const std::string& path, const std::string& bytes) {
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file.valid()) return ErrnoStatus(absl::StrCat("open ", path));
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t written = write(file.get(), bytes.data() + done, bytes.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return ErrnoStatus(absl::StrCat("write ", path));
    done += static_cast<size_t>(written);
  }
  return fsync(file.get()) == 0 ? absl::OkStatus() : ErrnoStatus(absl::StrCat("fsync ", path));
}

absl::StatusOr<std::vector<v1::AgentMessage>> Parse(const std::string& bytes, const std::string& node) {
  const size_t line = bytes.find('\n');
  if (line == std::string::npos) return absl::DataLossError("file is truncated");
  if (bytes.substr(0, line) != node)
    return absl::FailedPreconditionError(absl::StrCat("file belongs to node ", bytes.substr(0, line)));
  FrameBuffer frames;
  frames.Append(bytes.data() + line + 1, bytes.size() - line - 1);
  std::vector<v1::AgentMessage> messages;
  while (true) {
    std::string payload;
    bool complete = false;
    FSDPD_RETURN_IF_ERROR(frames.Next(&payload, &complete));
    if (!complete) break;
    if (!messages.emplace_back().ParseFromString(payload))
      return absl::DataLossError("file contains an invalid message");
  }
  if (frames.pending_bytes() > 0) return absl::DataLossError("file is truncated");
  return messages;
}

std::vector<v1::AgentMessage> TakeFile(const std::string& path, const std::string& node) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return {};
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  absl::StatusOr<std::vector<v1::AgentMessage>> messages = Parse(bytes, node);
  unlink(path.c_str());
  if (messages.ok()) return *std::move(messages);
  LogWarning("ignored undelivered messages of an earlier agent path=%s error=%s", path,
             messages.status().message());
  return {};
}

}  // namespace

absl::Status StoreUndelivered(const std::string& work_dir, const std::string& node,
                              const std::vector<v1::AgentMessage>& messages) {
  const std::string path = PathIn(work_dir), half = path + ".tmp";
  if (messages.empty()) {
    if (unlink(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
    return ErrnoStatus(absl::StrCat("remove ", path));
  }
  std::string bytes = node + "\n";
  for (const v1::AgentMessage& message : messages) FSDPD_RETURN_IF_ERROR(AppendFrame(message, &bytes));
  FSDPD_RETURN_IF_ERROR(WriteSynced(half, bytes));
  if (rename(half.c_str(), path.c_str()) != 0) return ErrnoStatus(absl::StrCat("rename ", half));
  const UniqueFd directory(open(work_dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.valid() || fsync(directory.get()) != 0) return ErrnoStatus(absl::StrCat("fsync ", work_dir));
  return absl::OkStatus();
}

std::vector<v1::AgentMessage> TakeUndelivered(const std::string& work_dir, const std::string& node) {
  std::vector<v1::AgentMessage> messages = TakeFile(PathIn(work_dir, kFileOfRelease01), node);
  for (v1::AgentMessage& message : TakeFile(PathIn(work_dir), node)) messages.push_back(std::move(message));
  return messages;
}

}  // namespace fsdpd
