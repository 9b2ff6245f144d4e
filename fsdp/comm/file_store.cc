#include "fsdp/comm/file_store.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/time/clock.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include "base/check.h"

namespace fsdpd {
namespace {

// Ranks start seconds apart, so a longer poll barely delays the last one, and hundreds of ranks do not flood
// a file server with requests.
constexpr absl::Duration kFirstPoll = absl::Milliseconds(1);
constexpr absl::Duration kLongestPoll = absl::Milliseconds(50);

absl::Status ErrnoError(const std::string& path) {
  return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
}

// Escapes a key as a file name: "gather/0" is "gather%2F0".
std::string Escaped(const std::string& key) {
  std::string name;
  for (const char c : key) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-') {
      name += c;
    } else {
      absl::StrAppendFormat(&name, "%%%02X", static_cast<unsigned char>(c));
    }
  }
  return name;
}

absl::Status WriteNew(std::string* path, const std::string& value) {
  const int file = mkstemp(path->data());
  if (file < 0) return ErrnoError(*path);
  size_t written = 0;
  while (written < value.size()) {
    const ssize_t bytes = write(file, value.data() + written, value.size() - written);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) break;
    written += static_cast<size_t>(bytes);
  }
  const bool complete = written == value.size();
  const absl::Status status = complete ? absl::OkStatus() : ErrnoError(*path);
  if (close(file) != 0 && complete) return ErrnoError(*path);
  return status;
}

// nullopt: the file does not exist yet.
absl::StatusOr<std::optional<std::string>> ReadIfExists(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file && errno == ENOENT) return std::nullopt;
  if (!file) return ErrnoError(path);
  std::string value(std::istreambuf_iterator<char>(file), {});
  if (file.bad()) return ErrnoError(path);
  return value;
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileStore>> FileStore::Open(const std::string& directory,
                                                           absl::Duration longest_wait) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return absl::UnavailableError(absl::StrCat(directory, ": ", error.message()));
  return std::unique_ptr<FileStore>(new FileStore(directory, longest_wait));
}

std::string FileStore::FileOf(const std::string& key) const {
  return absl::StrCat(directory_, "/", Escaped(key));
}

absl::Status FileStore::Set(const std::string& key, const std::string& value) {
  const std::string path = FileOf(key);
  std::string temporary = absl::StrCat(directory_, "/.new.XXXXXX");  // No key's file starts with a dot.
  absl::Status status = WriteNew(&temporary, value);
  if (status.ok() && link(temporary.c_str(), path.c_str()) != 0) {
    status = errno == EEXIST ? absl::AlreadyExistsError(key) : ErrnoError(path);
  }
  unlink(temporary.c_str());
  if (!absl::IsAlreadyExists(status)) return status;
  FSDPD_ASSIGN_OR_RETURN(const std::optional<std::string> present, ReadIfExists(path));
  if (present == value) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrFormat("key %s: already set to another value in %s", key, directory_));
}

absl::StatusOr<std::string> FileStore::Get(const std::string& key, absl::Duration timeout) {
  // Steady clock: setting the wall clock back must not extend the wait.
  const auto start = std::chrono::steady_clock::now();
  timeout = std::min(timeout, longest_wait_);
  const std::string path = FileOf(key);
  for (absl::Duration poll = kFirstPoll;; poll = std::min(2 * poll, kLongestPoll)) {
    FSDPD_ASSIGN_OR_RETURN(std::optional<std::string> value, ReadIfExists(path));
    if (value.has_value()) return *std::move(value);
    const absl::Duration left = timeout - absl::FromChrono(std::chrono::steady_clock::now() - start);
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(
          absl::StrFormat("key %s: not set in %s within %s", key, directory_, absl::FormatDuration(timeout)));
    }
    absl::SleepFor(std::min(poll, left));
  }
}

}  // namespace fsdpd
