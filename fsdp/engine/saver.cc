#include "fsdp/engine/saver.h"

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>
#include <absl/time/clock.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/errno_status.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/text.h"
#include "fsdp/checkpoint/dcp/dcp_reader.h"
#include "fsdp/checkpoint/dcp/dcp_writer.h"
#include "fsdp/checkpoint/format/directory_path.h"
#include "fsdp/checkpoint/format/durable_file.h"
#include "fsdp/checkpoint/job/job_directory.h"
#include "fsdp/comm/peer_lost.h"
#include "fsdp/engine/bad_step.h"
#include "fsdp/engine/error_cause.h"
#include "fsdp/torch/torch_status.h"

namespace fsdpd {
namespace {

constexpr absl::Duration kStopPoll = absl::Milliseconds(20);
// Writer threads per rank. With CUDA the CPU cores are mostly idle; CPU ranks share their cores with
// training.
constexpr int kCudaWriters = 4;
constexpr char kWritten[] = "written ";
constexpr char kCommitted[] = "committed";
constexpr size_t kMaxErrorBytes = 4096;
constexpr char kDiskFull[] = "full: ";  // Prefix of a disk-full error.
// How long the store normally takes to answer, apart from waiting for slower ranks; and the interval of
// looking into the directory after that.
constexpr absl::Duration kStoreTimeout = absl::Seconds(2);
constexpr absl::Duration kFallbackInterval = absl::Seconds(1);

std::string RankKey(int64_t save, int64_t rank) { return absl::StrCat("save/", save, "/", rank); }
std::string OutcomeKey(int64_t save) { return absl::StrCat("save/", save); }

std::string ErrorText(const absl::Status& status) { return CutText(status.message(), kMaxErrorBytes); }

bool IsOfDisk(const absl::Status& status) {
  const std::optional<v1::ErrorClass> fault = CauseOf(status);
  return IsDiskFull(status) || (fault.has_value() && fault->kind() == v1::ErrorClass::KIND_DISK);
}

// Encodes an error for the other ranks; DecodeError() decodes it.
std::string EncodeError(const absl::Status& status) {
  return absl::StrCat(IsOfDisk(status) ? kDiskFull : "", ErrorText(status));
}
absl::Status DecodeError(absl::string_view who, absl::string_view text) {
  const bool full = absl::ConsumePrefix(&text, kDiskFull);
  const absl::Status error = absl::UnavailableError(absl::StrCat(who, text));
  // Not permanent: attempts fail until space is freed, and the coordinator's policy decides what follows.
  return full ? WithCause(v1::ErrorClass::KIND_DISK, /*permanent=*/false, error) : error;
}

// "written CRC32 BYTES", or the encoded error.
std::string SumText(const absl::StatusOr<DcpSum>& sum) {
  if (!sum.ok()) return EncodeError(sum.status());
  return absl::StrCat(kWritten, sum->crc32, " ", sum->bytes);
}

absl::StatusOr<DcpSum> ParseSum(int64_t rank, absl::string_view text) {
  const absl::string_view answer = text;
  DcpSum sum;
  if (!absl::ConsumePrefix(&text, kWritten)) {
    const absl::Status error = DecodeError(absl::StrCat("rank ", rank, ": "), answer);
    return rank == 0 ? error : OfPeer(error);
  }
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(text, ' ');
  if (!absl::SimpleAtoi(parts.first, &sum.crc32) || !absl::SimpleAtoi(parts.second, &sum.bytes)) {
    return absl::InternalError(absl::StrCat("rank ", rank, ": invalid checksum (got '", answer, "')"));
  }
  return sum;
}

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

Saver::Saver(Options options, const Snapshot* snapshot)
    : options_(std::move(options)), snapshot_(snapshot), worker_([this] { Run(); }) {}

Saver::~Saver() { Leave(); }

void Saver::Leave() {
  int64_t next = 0;
  {
    MutexLock lock(&mutex_);
    leaving_ = true;
    next = saves_;
    changed_.SignalAll();
  }
  const std::string left = absl::StrCat("rank ", options_.position.rank, " has left");
  options_.store->Set(RankKey(next, options_.position.rank), left).IgnoreError();
  if (options_.position.rank == 0) options_.store->Set(OutcomeKey(next), left).IgnoreError();
  worker_.join();
}

// Returns null if the directory cannot be used.
FileStore* Saver::FallbackStore() {
  if (fallback_ == nullptr && !options_.directory->token().empty()) {
    auto opened = FileStore::Open(options_.directory->message_dir(), absl::ZeroDuration());
    if (opened.ok()) fallback_ = *std::move(opened);
  }
  return fallback_.get();
}

// Waits for `key` in the store. While the store does not answer, `fallback` is polled as well. Once that was
// necessary, `fallback` comes first: waiting out the timeout for each rank in turn would take minutes.
absl::StatusOr<std::string> Saver::AwaitValue(int64_t rank, const std::string& key,
                                              const std::function<std::optional<std::string>()>& fallback) {
  if (!options_.store_may_be_unreachable) return GetFrom(options_.store, rank, key, kLongestFileWait);
  const auto begin = std::chrono::steady_clock::now();
  for (absl::Duration timeout = store_is_unreachable_ ? kFallbackInterval : kStoreTimeout;;
       timeout = kFallbackInterval) {
    if (store_is_unreachable_) {
      if (std::optional<std::string> value = fallback(); value.has_value()) return *std::move(value);
    }
    absl::StatusOr<std::string> answer = GetFrom(options_.store, rank, key, timeout);
    const bool over = absl::Seconds(SecondsSince(begin)) > kLongestFileWait;
    if (!absl::IsDeadlineExceeded(answer.status())) store_is_unreachable_ = false;
    if (!absl::IsDeadlineExceeded(answer.status()) || over) return answer;
    store_is_unreachable_ = true;
  }
}

absl::StatusOr<std::string> Saver::AwaitSum(const Save& save, int64_t rank) {
  const std::string key = RankKey(save.number, rank);
  return AwaitValue(rank, key, [&]() -> std::optional<std::string> {
    if (FallbackStore() == nullptr) return std::nullopt;
    absl::StatusOr<std::string> answer = FallbackStore()->Get(key, absl::ZeroDuration());
    return answer.ok() ? std::optional<std::string>(*std::move(answer)) : std::nullopt;
  });
}

// `own`: the checksum that this rank published.
absl::StatusOr<std::string> Saver::AwaitOutcome(const Save& save, const std::string& directory,
                                                const std::string& own) {
  bool published = false;
  return AwaitValue(0, OutcomeKey(save.number), [&]() -> std::optional<std::string> {
    if (FallbackStore() == nullptr) return std::nullopt;
    if (!published) published = FallbackStore()->Set(RankKey(save.number, options_.position.rank), own).ok();
    // Rank 0 may have committed without needing this directory. The checkpoint was not there before this
    // save, or this rank could not have created its file.
    if (absl::StartsWith(own, kWritten) && IsCheckpoint(directory)) return kCommitted;
    absl::StatusOr<std::string> answer = FallbackStore()->Get(OutcomeKey(save.number), absl::ZeroDuration());
    return answer.ok() ? std::optional<std::string>(*std::move(answer)) : std::nullopt;
  });
}

void Saver::AwaitSnapshotBuffer() {
  const auto begin = std::chrono::steady_clock::now();
  MutexLock lock(&mutex_);
  while (busy_ && !options_.stop->load()) {
    changed_.WaitFor(&mutex_, absl::ToChronoNanoseconds(kStopPoll));
  }
  stall_seconds_ = SecondsSince(begin);
}

void Saver::Write(const TrainingState& state) {
  MutexLock lock(&mutex_);
  FSDPD_CHECK(!busy_);
  busy_ = true;
  last_step_ = state.step;
  next_ = std::make_unique<Save>(
      Save{saves_++, state, std::chrono::steady_clock::now(), std::exchange(stall_seconds_, 0)});
  changed_.SignalAll();
}

absl::Status Saver::AwaitLast() {
  AwaitSnapshotBuffer();
  MutexLock lock(&mutex_);
  return busy_ ? absl::CancelledError("asked to stop") : last_;
}

double Saver::LastSeconds() const {
  MutexLock lock(&mutex_);
  return last_seconds_;
}

absl::Status Saver::Finish() {
  AwaitSnapshotBuffer();
  MutexLock lock(&mutex_);
  const Spec& spec = options_.plan->spec;
  if (busy_ || last_.ok() || !spec.checkpoint.on_end || last_step_ != spec.steps) return absl::OkStatus();
  const absl::Status lost = Annotated(last_, "the checkpoint of the last step was not written: ");
  return IsOfDisk(last_) ? WithCause(v1::ErrorClass::KIND_DISK, /*permanent=*/false, lost) : lost;
}

void Saver::Run() {
  while (true) {
    std::unique_ptr<Save> save;
    {
      MutexLock lock(&mutex_);
      while (next_ == nullptr && !leaving_) changed_.Wait(&mutex_);
      if (next_ == nullptr) return;
      save = std::move(next_);
    }
    ExecuteSave(*save);
  }
}

void Saver::ExecuteSave(const Save& save) {
  const Plan& plan = *options_.plan;
  const int64_t rank = options_.position.rank;
  const std::string directory = CheckpointPath(plan.spec.checkpoint.dir, save.state.step);
  JobFile file;
  absl::StatusOr<DcpSum> sum = DcpSum();
  // A save that runs out of memory or threads fails, and training continues.
  const absl::Status written = CatchTorch([&]() -> absl::Status {
    file =
        JobFileOf(plan.spec, plan.layout, plan.full_layout(), options_.position, save.state, options_.label);
    FSDPD_RETURN_IF_ERROR(options_.directory->ActivationSaving());
    if (!file.empty()) {
      FSDPD_ASSIGN_OR_RETURN(sum, WriteFile(save, directory, file));
    }
    return absl::OkStatus();
  });
  if (!written.ok()) sum = written;
  const std::string own = SumText(sum);
  absl::StatusOr<std::string> outcome = absl::UnknownError("");
  bool of_peer = false;
  if (const absl::Status published = options_.store->Set(RankKey(save.number, rank), own); !published.ok()) {
    outcome = published;
  } else {
    outcome = rank == 0 ? Decide(save, directory, own, &of_peer) : AwaitOutcome(save, directory, own);
    // Unless rank 0 only repeats this rank's own error.
    if (rank > 0)
      of_peer = sum.ok() || !outcome.ok() || *outcome != EncodeError(ParseSum(rank, own).status());
  }
  const bool committed = outcome.ok() && *outcome == kCommitted;
  // Remove only files of this save, and only once rank 0 has declared it failed: before that, rank 0 may
  // still commit this rank's file.
  if (outcome.ok() && !committed && !IsCheckpoint(directory)) {
    if (sum.ok()) unlink(absl::StrCat(directory, "/", file.file.name).c_str());
    // Left by a failed commit.
    if (sum.ok() && rank == 0) unlink(absl::StrCat(directory, "/", kDcpSumsName).c_str());
    rmdir(directory.c_str());  // Succeeds for the last rank to leave.
  }
  MutexLock lock(&mutex_);
  last_ = !outcome.ok() ? outcome.status() : committed ? absl::OkStatus() : DecodeError("", *outcome);
  if (outcome.ok() && !committed && of_peer) last_ = OfPeer(last_);
  last_seconds_ = SecondsSince(save.begin);
  busy_ = false;
  changed_.SignalAll();
}

// Rank 0: commits if all ranks succeeded, and publishes the outcome.
absl::StatusOr<std::string> Saver::Decide(const Save& save, const std::string& directory,
                                          const std::string& own, bool* of_peer) {
  absl::StatusOr<int64_t> bytes = 0;
  const absl::Status caught = CatchTorch([&] {
    bytes = Commit(save, directory, own);
    return absl::OkStatus();
  });
  if (!caught.ok()) bytes = caught;
  ReportSaved(save, directory, bytes);
  *of_peer = IsPeerLost(bytes.status());
  const std::string outcome = bytes.ok() ? std::string(kCommitted) : EncodeError(bytes.status());
  FSDPD_RETURN_IF_ERROR(options_.store->Set(OutcomeKey(save.number), outcome));
  if (fallback_ != nullptr) fallback_->Set(OutcomeKey(save.number), outcome).IgnoreError();
  if (!bytes.ok()) return outcome;
  const absl::Status tidied = CatchTorch([&] {
    RemoveOldCheckpoints(save.state.step, directory);
    return absl::OkStatus();
  });
  if (!tidied.ok())
    LogWarning("failed to remove old checkpoints step=%d error=%s", save.state.step, tidied.message());
  return outcome;
}

absl::StatusOr<DcpSum> Saver::WriteFile(const Save& save, const std::string& directory, const JobFile& file) {
  FSDPD_RETURN_IF_ERROR(MakeDirectory(directory));
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<DcpWriter> writer, DcpWriter::Create(directory, file.file));
  const auto steps_taken = static_cast<float>(save.state.steps_taken);
  std::atomic<size_t> next{0};
  std::vector<absl::Status> statuses(options_.plan->spec.device == DeviceKind::kCuda ? kCudaWriters : 1);
  const auto write_pieces = [&](absl::Status* status) {
    std::vector<char> scratch;
    for (size_t piece = next++; status->ok() && piece < file.runs.size(); piece = next++) {
      const StoredRun& run = file.runs[piece];
      const int64_t width = file.file.pieces[piece].type->bytes;
      *status = writer->Write(piece, [&](int64_t begin, int64_t bytes) -> const void* {
        if (run.what == StoredRun::What::kStepsTaken) return &steps_taken;
        StoredRun from = run;
        from.begin += begin / width;
        return snapshot_->Bytes(from, bytes, &scratch);
      });
    }
    return *status;
  };
  const auto write = [&](absl::Status* status) {
    *status = CatchTorch([&] { return write_pieces(status); });
  };
  std::vector<std::thread> helpers;
  // Fewer helpers are fine if threads cannot be started.
  const absl::Status started = CatchTorch([&] {
    for (size_t i = 1; i < statuses.size(); ++i) helpers.emplace_back(write, &statuses[i]);
    return absl::OkStatus();
  });
  write(statuses.data());
  for (std::thread& helper : helpers) helper.join();
  if (!started.ok() && !std::exchange(warned_of_threads_, true))
    LogWarning("could not start all writer threads of checkpoints error=%s", started.message());
  for (const absl::Status& status : statuses) FSDPD_RETURN_IF_ERROR(status);
  return writer->Finish();
}

// Returns the total size of all files in bytes.
absl::StatusOr<int64_t> Saver::Commit(const Save& save, const std::string& directory,
                                      const std::string& own) {
  const Plan& plan = *options_.plan;
  std::vector<JobFile> files;
  std::vector<DcpSum> sums;
  int64_t bytes = 0;
  absl::Status failed;  // Error of the lowest rank, once all have finished.
  for (int64_t rank = 0; rank < plan.spec.mesh.world(); ++rank) {
    std::string answer = own;
    if (rank > 0) {
      FSDPD_ASSIGN_OR_RETURN(answer, AwaitSum(save, rank));
    }
    const absl::StatusOr<DcpSum> sum = ParseSum(rank, answer);
    failed.Update(sum.status());
    if (!sum.ok()) continue;
    files.push_back(JobFileOf(plan.spec, plan.StageOf(rank).layout, plan.full_layout(),
                              {plan.spec.mesh, rank}, save.state, options_.label));
    sums.push_back(*sum);
    bytes += sum->bytes;
    if (!files.back().empty()) continue;
    files.pop_back();
    sums.pop_back();
  }
  FSDPD_RETURN_IF_ERROR(failed);
  std::vector<const DcpFile*> layouts;
  for (const JobFile& file : files) layouts.push_back(&file.file);
  // Sync the parent directory first: nothing may fail after CommitDcp() has made this a checkpoint.
  FSDPD_RETURN_IF_ERROR(SyncDirectory(plan.spec.checkpoint.dir));
  FSDPD_RETURN_IF_ERROR(CommitDcp(directory, layouts, sums));
  return bytes;
}

// Runs after the outcome is published: removal may be slow, and its errors must not make the save fail.
void Saver::RemoveOldCheckpoints(int64_t step, const std::string& directory) {
  const CheckpointConfig& checkpoint = options_.plan->spec.checkpoint;
  own_[directory] = true;
  const auto is_own = [this](const std::string& path) {
    const auto [known, is_new] = own_.emplace(path, false);
    if (!is_new || options_.label.job.empty()) return known->second;
    const absl::StatusOr<std::unique_ptr<DcpReader>> reader = DcpReader::Open(path);
    const absl::StatusOr<std::string> id = reader.ok() ? ReadJobId(**reader) : reader.status();
    return known->second = id.ok() && *id == options_.label.job;
  };
  absl::Status status = RecordNewest(checkpoint.dir, step);
  status.Update(RemoveOld(checkpoint.dir, step, checkpoint.keep_last, checkpoint.keep_every, is_own));
  if (!status.ok()) LogWarning("failed to remove old checkpoints step=%d error=%s", step, status.message());
}

void Saver::ReportSaved(const Save& save, const std::string& directory,
                        const absl::StatusOr<int64_t>& bytes) {
  v1::SavedCheckpoint saved;
  saved.set_step(save.state.step);
  saved.set_path(directory);
  saved.set_seconds(SecondsSince(save.begin));
  saved.set_stall_seconds(save.stall_seconds);
  saved.set_unix_nanos(absl::GetCurrentTimeNanos());
  if (bytes.ok()) {
    saved.set_bytes(*bytes);
  } else {
    saved.set_error(ErrorText(bytes.status()));
  }
  if (options_.on_saved) options_.on_saved(saved);
}

}  // namespace fsdpd
