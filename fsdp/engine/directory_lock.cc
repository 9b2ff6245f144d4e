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
#include "fsdp/checkpoint/directory_fault.h"
#include "fsdp/checkpoint/durable_file.h"
#include "fsdp/checkpoint/job_directory.h"
#include "fsdp/comm/peer_lost.h"
#include "fsdp/engine/bad_step.h"
#include "fsdp/engine/rank_fault.h"

namespace fsdpd {
namespace {

constexpr absl::Duration kStopPoll = absl::Milliseconds(20);
constexpr size_t kMaxErrorBytes = 4096;
// Longer than a server of files keeps the locks of a client that is gone.
constexpr absl::Duration kLongestHold = absl::Minutes(3);
// Clients of such a server remember for a while what was not there.
constexpr absl::Duration kLongestUnseen = absl::Seconds(10);
// A holder signs right after it has the lock; until then the file names the holder before it.
constexpr absl::Duration kLongestUnsigned = absl::Seconds(1);
constexpr char kLockName[] = ".fsdpd_lock";
constexpr char kDirectoryKey[] = "save/directory";
constexpr char kNoJob[] = "-";
constexpr char kUnwritten[] = "unwritten";
constexpr char kNoDirectory[] = "failed: ";  // And why.
constexpr char kSaidPrefix[] = ".fsdpd_said.";

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "";
}

struct Holder {
  std::string job, token, host;  // Empty: not known.
  std::string Where() const { return host.empty() ? "" : absl::StrCat(" on host ", host); }
};

Holder HolderOf(const std::string& path) {
  Holder holder;
  std::ifstream(path) >> holder.job >> holder.token >> holder.host;
  return holder;
}

// Not where that cannot be told.
bool WasRemoved(const std::string& path, int file) {
  struct stat held, there;
  if (fstat(file, &held) != 0) return false;
  if (stat(path.c_str(), &there) != 0) return errno == ENOENT;
  return held.st_dev != there.st_dev || held.st_ino != there.st_ino;
}

}  // namespace

std::string DirectoryLock::path() const { return absl::StrCat(options_.dir, "/", kLockName); }
std::string DirectoryLock::said_dir() const { return absl::StrCat(options_.dir, "/", kSaidPrefix, token_); }

absl::StatusOr<std::unique_ptr<DirectoryLock>> DirectoryLock::Take(Options options) {
  std::unique_ptr<DirectoryLock> lock(new DirectoryLock(std::move(options)));
  const bool is_first = lock->options_.rank == 0;
  absl::Status status = lock->Make();
  const bool of_path = !status.ok() && !absl::IsUnavailable(status);
  if (status.ok()) status = is_first ? lock->TakeAsFirst() : lock->AwaitFirst();
  if (status.ok()) return lock;
  // No other rank waits for what does not come.
  const std::string why = CutText(status.message(), kMaxErrorBytes);
  if (is_first) lock->options_.store->Set(kDirectoryKey, kNoDirectory + why).IgnoreError();
  const absl::Status told = Annotated(status, "checkpoint.dir: ");
  return of_path ? BlamedOn(v1::RankFault::KIND_CONFIGURATION, /*permanent=*/false, told) : told;
}

DirectoryLock::~DirectoryLock() {
  // Only this attempt's messages: a later attempt may hold the lock by now (CheckHeld()).
  std::error_code error;
  if (locked_) std::filesystem::remove_all(said_dir(), error);
  if (lock_ >= 0) close(lock_);
}

absl::Status DirectoryLock::Make() {
  const std::string& dir = options_.dir;
  if (options_.has_checkpoints && access(dir.c_str(), F_OK) != 0 && errno == ENOENT) return absl::OkStatus();
  FSDPD_RETURN_IF_ERROR(MakeDirectory(dir));
  return access(dir.c_str(), W_OK | X_OK) == 0 ? absl::OkStatus()
                                               : DirectoryFault(absl::StrCat("write to ", dir), errno);
}

absl::Status DirectoryLock::TakeAsFirst() {
  // ChooseCheckpoint() reports a directory that is missing.
  if (access(options_.dir.c_str(), F_OK) != 0) return options_.store->Set(kDirectoryKey, kUnwritten);
  FSDPD_RETURN_IF_ERROR(Lock(kLongestHold));
  token_ = NewToken();
  const absl::Status written = Sign();
  // A full disk may have space again when there is a checkpoint to write.
  if (!written.ok()) {
    LogWarning("whether all nodes share the directory is not known: %s", written.message());
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
  return absl::UnavailableError(absl::StrCat("rank ", options_.rank, " does not see in ", options_.dir,
                                             " what rank 0 has just written there: all nodes must share it"));
}

// A rank 0 of an attempt before may live on for a while, on a node that was lost. The kernel drops the locks
// of a process that ends: only a holder that has signed on this host is known to be alive.
absl::Status DirectoryLock::Lock(absl::Duration longest_foreign) {
  const std::string path = this->path();
  lock_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (lock_ < 0 && (errno == ENOSPC || errno == EDQUOT)) return absl::OkStatus();
  if (lock_ < 0) return ErrnoStatus(absl::StrCat("open ", path));
  const absl::Time begin = options_.clock->Now();
  std::string logged;  // The holder.
  // Where the file system has no locks, nothing keeps two apart.
  while (!(locked_ = flock(lock_, LOCK_EX | LOCK_NB) == 0) && errno == EWOULDBLOCK) {
    const Holder holder = HolderOf(path);
    // On a full disk the file is empty for any holder.
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
      return absl::FailedPreconditionError(
          absl::StrCat(path, " is locked by ", who,
                       ": end its rank 0 (a node that was lost, or a process that is stopped or hangs)"));
    }
    return BlamedOn(
        v1::RankFault::KIND_CONFIGURATION, /*permanent=*/false,
        absl::FailedPreconditionError(absl::StrCat(
            path, " is locked by ", who, ", which writes there: give each job a directory of its own",
            alive ? "" : ", or end that process if its job has ended")));
  }
  if (locked_ && !logged.empty())
    LogInfo("took the lock of checkpoint.dir path=%s waited_seconds=%d", path,
            absl::ToInt64Seconds(options_.clock->Now() - begin));
  return absl::OkStatus();
}

// The other ranks look for it.
absl::Status DirectoryLock::Sign() {
  const std::string path = this->path();
  const std::string content =
      absl::StrCat(options_.job.empty() ? kNoJob : options_.job, " ", token_, " ", HostName(), "\n");
  if (lock_ < 0) return ErrnoStatus(absl::StrCat("write ", path));
  // Never empty in between, for those that wait for the lock.
  FSDPD_RETURN_IF_ERROR(WriteAt(lock_, path, 0, {{const_cast<char*>(content.data()), content.size()}}));
  if (ftruncate(lock_, static_cast<off_t>(content.size())) != 0)
    return ErrnoStatus(absl::StrCat("write ", path));
  // It stays open, and servers of files show others what was closed or synced.
  return fsync(lock_) == 0 ? absl::OkStatus() : ErrnoStatus(absl::StrCat("fsync ", path));
}

// Rank 0's, before it writes: the directory may have been removed with its lock, and another run have taken
// the one that was made since.
absl::Status DirectoryLock::Keep() {
  const std::string& dir = options_.dir;
  const std::string path = this->path();
  if (!locked_) return absl::OkStatus();
  if (!WasRemoved(path, lock_)) return CheckHeld();
  const std::string found = HolderOf(path).token;
  if (!found.empty() && found == token_) return absl::OkStatus();  // File systems may number files anew.
  FSDPD_RETURN_IF_ERROR(MakeDirectory(dir));
  const int held = std::exchange(lock_, -1);
  const absl::Status taken = Lock(kLongestUnsigned);  // Of a run that was faster, and is alive.
  if (lock_ >= 0 && taken.ok()) {
    close(held);
    LogWarning("%s was removed while the job trains: the directory is another, or empty", path);
    if (const absl::Status signed_anew = Sign(); !signed_anew.ok()) LogWarning("%s", signed_anew.message());
    return absl::OkStatus();
  }
  // The next save tries again.
  if (lock_ >= 0) close(lock_);
  lock_ = held;
  locked_ = true;
  return absl::Status(
      taken.code(),
      absl::StrCat(dir, " was removed while the job trains, and is not its own any more: ", taken.message()));
}

absl::Status DirectoryLock::CheckHeld() const {
  const Holder holder = HolderOf(path());
  if (token_.empty() || holder.token.empty() || holder.token == token_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(path(), " was taken by ", holder.job == options_.job ? "a later attempt" : holder.job,
                   holder.Where(), ": this one no longer writes there"));
}

absl::Status DirectoryLock::Clear(const std::vector<std::string>& damaged) {
  for (const std::string& path : damaged) {
    FSDPD_RETURN_IF_ERROR(SetAside(path));
    LogWarning("%s is damaged, and kept as %s.damaged", path, path);
  }
  if (!locked_) return absl::OkStatus();
  const std::string& dir = options_.dir;
  RemoveSaid();
  const absl::StatusOr<int64_t> removed = RemoveUnfinished(dir);
  if (!removed.ok()) {
    LogWarning("what killed saves left stays: %s", removed.status().message());
  } else if (*removed > 0) {
    LogInfo("removed what killed saves left half in %s files=%d", dir, *removed);
  }
  return absl::OkStatus();
}

// What is left of them there is in nobody's way.
void DirectoryLock::RemoveSaid() const {
  std::error_code error;
  std::vector<std::filesystem::path> directories;
  for (std::filesystem::directory_iterator it(options_.dir, error), end; !error && it != end;
       it.increment(error)) {
    if (absl::StartsWith(it->path().filename().string(), kSaidPrefix)) directories.push_back(it->path());
  }
  for (const std::filesystem::path& directory : directories) std::filesystem::remove_all(directory, error);
}

}  // namespace fsdpd
