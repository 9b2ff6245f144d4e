#include "fsdp/engine/directory_lock.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>
#include <absl/time/time.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/errno_status.h"
#include "base/ids.h"
#include "base/log.h"
#include "base/text.h"
#include "fsdp/checkpoint/format/directory_path.h"
#include "fsdp/checkpoint/format/durable_file.h"
#include "fsdp/checkpoint/job/job_directory.h"
#include "fsdp/comm/peer_lost.h"
#include "fsdp/engine/bad_step.h"
#include "fsdp/engine/error_cause.h"

namespace fsdpd {
namespace {

constexpr absl::Duration kStopPoll = absl::Milliseconds(20);
constexpr size_t kMaxErrorBytes = 4096;
// Longer than a file server keeps the locks of a client that is gone.
constexpr absl::Duration kLongestHold = absl::Minutes(3);
// Clients of a network file system cache negative lookups for a while.
constexpr absl::Duration kLongestUnseen = absl::Seconds(10);
// A holder signs right after it locks; until then the file names the previous holder.
constexpr absl::Duration kLongestUnsigned = absl::Seconds(1);
constexpr char kLockName[] = ".fsdpd_lock";
// The name of release 0.1: ranks of both releases may take part in an attempt.
constexpr char kDirectoryKey[] = "save/folder";
constexpr char kNoJob[] = "-";
constexpr char kUnwritten[] = "unwritten";
constexpr char kNoDirectory[] = "failed: ";  // Followed by the reason.
constexpr char kMessagePrefix[] = ".fsdpd_said.";

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "";
}

struct Holder {
  std::string job, token, host;  // Empty: unknown.
  std::string Where() const { return host.empty() ? "" : absl::StrCat(" on host ", host); }
};

Holder HolderOf(const std::string& path) {
  Holder holder;
  std::ifstream(path) >> holder.job >> holder.token >> holder.host;
  return holder;
}

// False if it cannot be determined.
bool WasRemoved(const std::string& path, int file) {
  struct stat held, there;
  if (fstat(file, &held) != 0) return false;
  if (stat(path.c_str(), &there) != 0) return errno == ENOENT;
  return held.st_dev != there.st_dev || held.st_ino != there.st_ino;
}

}  // namespace

std::string DirectoryLock::path() const { return absl::StrCat(options_.dir, "/", kLockName); }
std::string DirectoryLock::message_dir() const {
  return absl::StrCat(options_.dir, "/", kMessagePrefix, token_);
}

absl::StatusOr<std::unique_ptr<DirectoryLock>> DirectoryLock::Take(Options options) {
  std::unique_ptr<DirectoryLock> lock(new DirectoryLock(std::move(options)));
  const bool is_first = lock->options_.rank == 0;
  absl::Status status = lock->Make();
  const bool of_path = !status.ok() && !absl::IsUnavailable(status);
  if (status.ok()) status = is_first ? lock->TakeAsFirst() : lock->AwaitFirst();
  if (status.ok()) return lock;
  // Publish the failure: otherwise the other ranks would wait until they time out.
  const std::string why = CutText(status.message(), kMaxErrorBytes);
  if (is_first) lock->options_.store->Set(kDirectoryKey, kNoDirectory + why).IgnoreError();
  const absl::Status error = Annotated(status, "checkpoint.dir: ");
  return of_path ? WithCause(v1::ErrorClass::KIND_CONFIGURATION, /*permanent=*/false, error) : error;
}

DirectoryLock::~DirectoryLock() {
  // Removes only this attempt's messages: a later attempt may hold the lock by now (CheckHeld()).
  std::error_code error;
  if (locked_) std::filesystem::remove_all(message_dir(), error);
  if (lock_ >= 0) close(lock_);
}

absl::Status DirectoryLock::Make() {
  const std::string& dir = options_.dir;
  if (options_.has_checkpoints && access(dir.c_str(), F_OK) != 0 && errno == ENOENT) return absl::OkStatus();
  FSDPD_RETURN_IF_ERROR(MakeDirectory(dir));
  return access(dir.c_str(), W_OK | X_OK) == 0 ? absl::OkStatus()
                                               : DirectoryError(absl::StrCat("write to ", dir), errno);
}

absl::Status DirectoryLock::TakeAsFirst() {
  // ChooseCheckpoint() reports the missing directory.
  if (access(options_.dir.c_str(), F_OK) != 0) return options_.store->Set(kDirectoryKey, kUnwritten);
  FSDPD_RETURN_IF_ERROR(Lock(kLongestHold));
  token_ = NewToken();
  const absl::Status written = Sign();
  // A full disk may have space again by the time the first checkpoint is written.
  if (!written.ok()) {
    LogWarning("could not verify that all nodes share checkpoint.dir error=%s", written.message());
    token_.clear();
  }
  return options_.store->Set(kDirectoryKey, written.ok() ? token_ : kUnwritten);
}

absl::Status DirectoryLock::AwaitFirst() {
  FSDPD_ASSIGN_OR_RETURN(const std::string token,
                         GetFrom(options_.store, 0, kDirectoryKey, kLongestFileWait));
  if (absl::string_view why = token; absl::ConsumePrefix(&why, kNoDirectory))
    return PeerLostError(absl::StrCat("rank 0: ", why));
  if (token == kUnwritten) return absl::OkStatus();
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begin < absl::ToChronoSeconds(kLongestUnseen)) {
    if (HolderOf(path()).token == token) {
      token_ = token;
      return absl::OkStatus();
    }
    if (options_.stop->load()) return absl::CancelledError("asked to stop");
    std::this_thread::sleep_for(absl::ToChronoNanoseconds(kStopPoll));
  }
  return absl::UnavailableError(
      absl::StrCat("rank ", options_.rank, ": ", options_.dir,
                   " does not have the file that rank 0 just wrote; mount the same directory on all nodes"));
}

// The rank 0 of an earlier attempt may survive for a while on a lost node. The kernel drops the locks of a
// process that exits, so a holder is known to be alive only if it signed on this host.
absl::Status DirectoryLock::Lock(absl::Duration longest_foreign) {
  const std::string path = this->path();
  lock_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (lock_ < 0 && (errno == ENOSPC || errno == EDQUOT)) return absl::OkStatus();
  if (lock_ < 0) return ErrnoStatus(absl::StrCat("open ", path));
  const absl::Time begin = options_.clock->Now();
  std::string logged;  // The holder.
  // EWOULDBLOCK only: without lock support in the file system the loop ends unlocked.
  while (!(locked_ = flock(lock_, LOCK_EX | LOCK_NB) == 0) && errno == EWOULDBLOCK) {
    const Holder holder = HolderOf(path);
    // An empty file has an unknown holder (the disk was full): treat it as this job's.
    const bool own = !options_.job.empty() && (holder.job.empty() || holder.job == options_.job);
    const bool alive = !holder.host.empty() && holder.host == HostName();
    const absl::Duration longest = own ? kLongestHold : alive ? kLongestUnsigned : longest_foreign;
    const bool has_job = !holder.job.empty() && holder.job != kNoJob;
    const std::string who = absl::StrCat(own       ? "an earlier attempt"
                                         : has_job ? holder.job
                                                   : "another run",
                                         holder.Where());
    const absl::Duration waited = options_.clock->Now() - begin;
    if ((own || !alive) && waited < longest && logged != who) {
      LogInfo("waiting for the lock of checkpoint.dir path=%s holder=%s seconds_left=%d", path, who,
              absl::ToInt64Seconds(longest - waited));
      logged = who;
    }
    if (waited < longest && !options_.stop->load()) {
      std::this_thread::sleep_for(absl::ToChronoNanoseconds(kStopPoll));
      continue;
    }
    if (own) {
      return absl::FailedPreconditionError(absl::StrCat(
          path, " is locked by ", who,
          "; kill its rank 0, a process fsdpd-rank (its node was lost, or it is stopped or hung)"));
    }
    return WithCause(v1::ErrorClass::KIND_CONFIGURATION, /*permanent=*/false,
                     absl::FailedPreconditionError(absl::StrCat(
                         path, " is locked by ", who, ", which writes there; give each job its own directory",
                         alive ? "" : ", or end that process if its job has ended")));
  }
  if (locked_ && !logged.empty())
    LogInfo("took the lock of checkpoint.dir path=%s waited_seconds=%d", path,
            absl::ToInt64Seconds(options_.clock->Now() - begin));
  return absl::OkStatus();
}

// Writes the line that the other ranks look for.
absl::Status DirectoryLock::Sign() {
  const std::string path = this->path();
  const std::string content =
      absl::StrCat(options_.job.empty() ? kNoJob : options_.job, " ", token_, " ", HostName(), "\n");
  if (lock_ < 0) return ErrnoStatus(absl::StrCat("write ", path));
  // Overwrite, then truncate: a rank that waits for the lock never reads an empty file.
  FSDPD_RETURN_IF_ERROR(WriteAt(lock_, path, 0, {{const_cast<char*>(content.data()), content.size()}}));
  if (ftruncate(lock_, static_cast<off_t>(content.size())) != 0)
    return ErrnoStatus(absl::StrCat("write ", path));
  // The file stays open, and a network file system shows other clients only what was closed or synced.
  return fsync(lock_) == 0 ? absl::OkStatus() : ErrnoStatus(absl::StrCat("fsync ", path));
}

// Rank 0, before it writes: the directory may have been removed together with the lock file, and another run
// may have locked its replacement.
absl::Status DirectoryLock::ActivationSaving() {
  const std::string& dir = options_.dir;
  const std::string path = this->path();
  if (!locked_) return absl::OkStatus();
  if (!WasRemoved(path, lock_)) return CheckHeld();
  const std::string found = HolderOf(path).token;
  if (!found.empty() && found == token_) return absl::OkStatus();  // Inode numbers can change.
  FSDPD_RETURN_IF_ERROR(MakeDirectory(dir));
  const int held = std::exchange(lock_, -1);
  const absl::Status taken = Lock(kLongestUnsigned);  // Wait only for a live holder.
  if (lock_ >= 0 && taken.ok()) {
    close(held);
    LogWarning("checkpoint.dir was removed during training; locked the new directory path=%s", path);
    if (const absl::Status signed_anew = Sign(); !signed_anew.ok()) LogWarning("%s", signed_anew.message());
    return absl::OkStatus();
  }
  // Failed: restore the old state, so that the next save tries again.
  if (lock_ >= 0) close(lock_);
  lock_ = held;
  locked_ = true;
  return absl::Status(
      taken.code(), absl::StrCat(dir, " was removed during training, and the new directory cannot be used: ",
                                 taken.message()));
}

absl::Status DirectoryLock::CheckHeld() const {
  const Holder holder = HolderOf(path());
  if (token_.empty() || holder.token.empty() || holder.token == token_) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      path(), ": the lock was taken by ", holder.job == options_.job ? "a later attempt" : holder.job,
      holder.Where(), "; this attempt no longer writes there"));
}

absl::Status DirectoryLock::Clear(const std::vector<std::string>& damaged) {
  for (const std::string& path : damaged) {
    FSDPD_RETURN_IF_ERROR(SetAside(path));
    LogWarning("renamed damaged checkpoint path=%s to=%s.damaged", path, path);
  }
  if (!locked_) return absl::OkStatus();
  const std::string& dir = options_.dir;
  RemoveMessages();
  const absl::StatusOr<int64_t> removed = RemoveUnfinished(dir);
  if (!removed.ok()) {
    LogWarning("failed to remove incomplete checkpoint files dir=%s error=%s", dir,
               removed.status().message());
  } else if (*removed > 0) {
    LogInfo("removed incomplete checkpoint files dir=%s files=%d", dir, *removed);
  }
  return absl::OkStatus();
}

// Best effort: leftover messages do no harm.
void DirectoryLock::RemoveMessages() const {
  std::error_code error;
  std::vector<std::filesystem::path> directories;
  for (std::filesystem::directory_iterator it(options_.dir, error), end; !error && it != end;
       it.increment(error)) {
    if (absl::StartsWith(it->path().filename().string(), kMessagePrefix)) directories.push_back(it->path());
  }
  for (const std::filesystem::path& directory : directories) std::filesystem::remove_all(directory, error);
}

}  // namespace fsdpd
