#include "fsdp/engine/checkpoint_choice.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/strip.h>
#include <absl/time/time.h>
#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/limits.h"
#include "base/text.h"
#include "fsdp/checkpoint/dcp/dcp_reader.h"
#include "fsdp/checkpoint/dcp/dcp_verify.h"
#include "fsdp/checkpoint/format/directory_path.h"
#include "fsdp/checkpoint/hf/hf_store.h"
#include "fsdp/checkpoint/job/job_directory.h"
#include "fsdp/checkpoint/job/job_file.h"
#include "fsdp/checkpoint/job/start_kind.h"
#include "fsdp/comm/peer_lost.h"
#include "fsdp/engine/error_cause.h"

namespace fsdpd {
namespace {

constexpr int kThreads = 8;
constexpr size_t kMaxWhyBytes = 512;

// Messages between ranks, as values in the store.
constexpr char kFresh[] = "fresh";
constexpr char kOwn[] = "own ";
constexpr char kLoaded[] = "loaded ";
constexpr char kIntact[] = "intact";
constexpr char kDamaged[] = "damaged ";
constexpr char kUnread[] = "unread ";  // I/O error: the state of the checkpoint is unknown.

std::string ProposalKey(size_t round) { return absl::StrCat("restore/", round); }
std::string CheckKey(size_t round, int rank) { return absl::StrCat("restore/", round, "/", rank); }
std::string VerdictKey(size_t round) { return absl::StrCat("restore/", round, "/verdict"); }

std::string Bounded(absl::string_view why) { return CutText(why, kMaxWhyBytes); }

// Encodes an error as "error CODE MESSAGE"; DecodeError() decodes it.
std::string EncodeError(const absl::Status& status) {
  return absl::StrCat("error ", static_cast<int>(status.code()), " ", Bounded(status.message()));
}
absl::Status DecodeError(absl::string_view answer) {
  int code = 0;
  const size_t end = answer.find(' ', 6);
  const bool known = absl::ConsumePrefix(&answer, "error ") && end != absl::string_view::npos;
  if (!known || std::sscanf(std::string(answer).c_str(), "%d", &code) != 1)
    return absl::InternalError(answer);
  return absl::Status(static_cast<absl::StatusCode>(code), answer.substr(answer.find(' ') + 1));
}

struct Candidates {
  std::vector<ChosenCheckpoint> in_order;
  std::vector<FoundCheckpoint> in_dir;  // Committed, newest first.
  std::vector<std::string> unreadable;  // Subset of in_dir whose owner could not be read.
  std::string lost;                     // Path of the known checkpoint if it is gone; otherwise empty.
};

absl::StatusOr<std::vector<FoundCheckpoint>> Committed(const std::string& field, const std::string& dir) {
  absl::StatusOr<std::vector<FoundCheckpoint>> found = ListCheckpoints(dir);
  if (!found.ok())
    return absl::Status(found.status().code(), absl::StrCat(field, ": ", found.status().message()));
  found->erase(std::remove_if(found->begin(), found->end(), [](const auto& each) { return !each.committed; }),
               found->end());
  return found;
}

enum class Owner { kJob, kOther, kUnreadable };

absl::StatusOr<Owner> OwnerOf(const std::string& path, const std::string& job) {
  const absl::StatusOr<std::unique_ptr<DcpReader>> reader = DcpReader::Open(path);
  const absl::StatusOr<std::string> id = reader.ok() ? ReadJobId(**reader) : reader.status();
  if (id.ok()) return *id == job ? Owner::kJob : Owner::kOther;
  if (IsDefectOfCheckpoint(id.status())) return Owner::kUnreadable;
  return absl::Status(id.status().code(), absl::StrCat("checkpoint.dir: ", id.status().message()));
}

absl::Status AddLoaded(const CheckpointConfig& checkpoint, Candidates* candidates) {
  const std::string load = WithoutSlash(checkpoint.load);
  if (IsCheckpoint(load)) {
    candidates->in_order.push_back({load});
    return absl::OkStatus();
  }
  FSDPD_ASSIGN_OR_RETURN(const std::vector<FoundCheckpoint> found, Committed("checkpoint.load", load));
  for (const FoundCheckpoint& each : found) candidates->in_order.push_back({each.path});
  if (found.empty() && HasHfWeights(load)) {
    candidates->in_order.push_back({load});
    return absl::OkStatus();
  }
  // A directory that is both loaded from and written to is empty on the first start.
  if (!found.empty() || load == WithoutSlash(checkpoint.dir)) return absl::OkStatus();
  const bool absent = access(load.c_str(), F_OK) != 0 && errno == ENOENT;
  if (const std::string problem = PeftProblem(load); !problem.empty())
    return absl::NotFoundError(absl::StrCat("checkpoint.load: no checkpoint at ", load, ": ", problem));
  return absl::NotFoundError(absl::StrCat(
      "checkpoint.load: no checkpoint at ", load,
      absent ? ": the directory does not exist; fsdpd downloads nothing, `hf download NAME --local-dir DIR` "
               "fetches a model of the Hugging Face Hub"
             : ": it has no .metadata, no iter_NNNNNNN directory with one, and no safetensors"));
}

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0 || errno != ENOENT; }

// Returns " (iter_0000060 and 2 more have no .metadata and are ignored)" for uncommitted checkpoints.
std::string UncommittedText(const std::string& dir) {
  const auto found = ListCheckpoints(dir);
  std::string first;
  int more = -1;
  for (const FoundCheckpoint& each : found.ok() ? *found : std::vector<FoundCheckpoint>()) {
    if (!each.committed && more++ < 0) first = each.path.substr(each.path.rfind('/') + 1);
  }
  if (more < 0) return "";
  return more == 0 ? absl::StrCat(" (", first, " has no .metadata and is ignored)")
                   : absl::StrCat(" (", first, " and ", more, " more have no .metadata and are ignored)");
}

// `known_step` was committed once.
absl::Status AllLostError(const std::string& dir, int64_t known_step) {
  return absl::NotFoundError(absl::StrCat(
      "checkpoint.dir: ", dir, Exists(dir) ? " has no checkpoint of this job" : " does not exist",
      UncommittedText(dir), ", but the job has committed step ", known_step,
      "; mount or restore the directory, or submit a new job to start at step 1"));
}

// Adds the job's own checkpoints and those of unknown owner, which are reported as damaged when they are
// verified. Adds nothing if no checkpoint is known to be the job's.
absl::Status AddOwn(const std::string& job, int64_t known_step, Candidates* candidates) {
  std::vector<ChosenCheckpoint> own;
  bool any = false;
  for (const FoundCheckpoint& each : candidates->in_dir) {
    const absl::StatusOr<Owner> owner = OwnerOf(each.path, job);
    if (!owner.ok() && any) continue;  // A newer one is readable.
    if (!owner.ok()) return owner.status();
    if (*owner == Owner::kUnreadable) candidates->unreadable.push_back(each.path);
    if (*owner != Owner::kOther) own.push_back({each.path, true});
    any = any || *owner == Owner::kJob;
  }
  if (any || known_step > 0) candidates->in_order = std::move(own);
  return absl::OkStatus();
}

// For a job that writes into the directory it started from: adds the checkpoints that were there before.
void AddCheckpointsBeforeStart(Candidates* candidates) {
  const std::vector<ChosenCheckpoint> own = candidates->in_order;
  const auto is_own = [&](const FoundCheckpoint& each) {
    return std::any_of(own.begin(), own.end(), [&](const auto& one) { return one.path == each.path; });
  };
  for (auto each = candidates->in_dir.rbegin(); each != candidates->in_dir.rend() && !is_own(*each); ++each)
    candidates->in_order.insert(candidates->in_order.begin() + static_cast<std::ptrdiff_t>(own.size()),
                                {each->path});
}

absl::StatusOr<Candidates> Find(const CheckpointConfig& checkpoint, const std::string& job,
                                int64_t known_step) {
  Candidates candidates;
  if (!checkpoint.dir.empty()) {
    const std::string dir = WithoutSlash(checkpoint.dir);
    FSDPD_ASSIGN_OR_RETURN(candidates.in_dir, Committed("checkpoint.dir", dir));
    if (!job.empty()) FSDPD_RETURN_IF_ERROR(AddOwn(job, known_step, &candidates));
    if (known_step > 0 && candidates.in_order.empty()) return AllLostError(dir, known_step);
    if (known_step > 0 && candidates.in_dir.front().step < known_step)
      candidates.lost = CheckpointPath(dir, known_step);
  }
  if (candidates.in_order.empty()) {
    if (!checkpoint.load.empty()) FSDPD_RETURN_IF_ERROR(AddLoaded(checkpoint, &candidates));
  } else if (WithoutSlash(checkpoint.load) == WithoutSlash(checkpoint.dir)) {
    AddCheckpointsBeforeStart(&candidates);
  }
  return candidates;
}

// The step after which the job resumes.
absl::StatusOr<int64_t> StepOf(const Spec& spec, const ChosenCheckpoint& chosen) {
  if (!chosen.own) {
    FSDPD_ASSIGN_OR_RETURN(const StartKind kind, KindOfStart(chosen.path, spec.model));
    FSDPD_ASSIGN_OR_RETURN(const bool parameters_only,
                           TakesParametersOnly(spec.checkpoint, chosen.path, kind));
    if (parameters_only) return 0;
  }
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<DcpReader> reader, DcpReader::Open(chosen.path));
  FSDPD_ASSIGN_OR_RETURN(const TrainingState state, ReadState(*reader, spec));
  return state.step;
}

// Candidates that were skipped.
struct SkippedCheckpoints {
  std::vector<std::string> damaged;  // Paths.
  std::vector<std::string> unread;
};

bool Holds(const std::vector<std::string>& paths, const std::string& path) {
  return std::find(paths.begin(), paths.end(), path) != paths.end();
}

// `own`: the job starts from a checkpoint of its own.
absl::Status ForeignCheckpointError(const CheckpointConfig& checkpoint, const std::string& job,
                                    const Candidates& candidates, const std::string& path, int64_t step,
                                    bool own) {
  const std::string start =
      step == 0 ? ", and this job starts fresh" : absl::StrCat(", and this job starts after step ", step);
  if (Holds(candidates.unreadable, path)) {
    return absl::DataLossError(absl::StrCat("checkpoint.dir: ", path,
                                            " cannot be read, so its owner is unknown", start,
                                            "; move it away to start anyway"));
  }
  const std::string theirs =
      absl::StrCat("use another directory, or resume from this one (checkpoint.load: ", checkpoint.dir, ")");
  const std::string its =
      absl::StrCat("move checkpoints later than step ", step, " out of the directory and `fsdpctl retry ",
                   job, "`, or `fsdpctl submit --from ", job, "@", step, "` with another checkpoint.dir");
  const std::string later =
      step == 0 ? start : absl::StrCat(" and is later than step ", step, ", where this job starts");
  return absl::FailedPreconditionError(
      absl::StrCat("checkpoint.dir: ", path, " belongs to another run", later, "; ", own ? its : theirs));
}

// Checks that every checkpoint in checkpoint.dir later than the start was skipped, and lists the damaged ones
// in `chosen->set_aside`. `chosen`: null if the job starts fresh.
absl::Status CheckLater(const Spec& spec, const std::string& job, const Candidates& candidates,
                        const SkippedCheckpoints& skipped_checkpoints, ChosenCheckpoint* chosen) {
  int64_t step = 0;
  if (chosen != nullptr) {
    FSDPD_ASSIGN_OR_RETURN(step, StepOf(spec, *chosen));
  }
  for (const FoundCheckpoint& later : candidates.in_dir) {
    if (later.step <= step) break;
    if (Holds(skipped_checkpoints.unread, later.path)) continue;
    if (chosen == nullptr || !Holds(skipped_checkpoints.damaged, later.path))
      return ForeignCheckpointError(spec.checkpoint, job, candidates, later.path, step,
                                    chosen != nullptr && chosen->own);
    chosen->set_aside.push_back(later.path);
  }
  return absl::OkStatus();
}

// Leftovers of a lost checkpoint are set aside like a damaged one, since the job reaches that step again.
void PassOverLost(const std::string& lost, ChosenCheckpoint* chosen) {
  if (lost.empty()) return;
  const bool there = Exists(lost);
  chosen->skipped_checkpoints.push_back(
      absl::StrCat(DirectoryName(lost), ": ", there ? "no longer has .metadata" : "no longer exists"));
  if (there) chosen->set_aside.push_back(lost);
}

// Classifies why this rank cannot read a checkpoint that rank 0 sees. A missing file of the job's own
// checkpoints may be a stale listing of the file server, and may return. One of another program is a mistake
// of the user.
std::string Unreadable(const absl::Status& status, const ChosenCheckpoint& chosen, int rank) {
  const std::string what = absl::StrCat(
      "rank ", rank, ": ",
      Exists(chosen.path) ? status.message()
                          : absl::StrCat(chosen.path,
                                         ": the directory does not exist on this node, and does on "
                                         "that of rank 0; mount it on every node"));
  if (absl::IsNotFound(status))
    return EncodeError(chosen.own ? absl::UnavailableError(what) : absl::NotFoundError(what));
  if (IsDefectOfCheckpoint(status)) return absl::StrCat(kDamaged, Bounded(status.message()));
  if (absl::IsInternal(status)) return absl::StrCat(kUnread, Bounded(what));
  return EncodeError(absl::Status(status.code(), what));
}

// Safetensors have no checksums: checks what is visible without reading tensor data, on every rank.
std::string CheckHf(const ChosenCheckpoint& chosen, int rank) {
  const absl::Status opened = OpenHfDirectory(chosen.path).status();
  if (opened.ok()) return kIntact;
  // The index names a file that does not exist.
  if (absl::IsNotFound(opened) && rank == 0) return absl::StrCat(kDamaged, Bounded(opened.message()));
  return Unreadable(opened, chosen, rank);
}

bool IsHf(const std::string& path) { return !IsCheckpoint(path) && HasHfWeights(path); }

// Verifies this rank's part of the files. Returns kIntact, kDamaged or kUnread plus the reason, or an encoded
// error of this machine.
std::string VerifyOwnFiles(const ChosenCheckpoint& chosen, int rank, int world) {
  // Do not decide by the directory's local content: an empty directory is one that is not shared.
  if (IsHf(chosen.path)) return CheckHf(chosen, rank);
  const absl::StatusOr<DcpVerdict> verdict =
      VerifyDcp(chosen.path, kThreads, [] { return false; }, {rank, world});
  if (!verdict.ok()) return Unreadable(verdict.status(), chosen, rank);
  if (verdict->violations.empty()) return kIntact;
  const DcpViolation& first = verdict->violations[0];
  return absl::StrCat(kDamaged, Bounded(absl::StrCat(first.where, ": ", first.what)));
}

// The first answer, in rank order, that is not kIntact. If all ranks check the same files, damage that only
// some of them see is an error of a node.
absl::StatusOr<std::string> VerdictOf(Store* store, size_t round, int world, bool same_files) {
  std::string verdict = kIntact;
  int first = 0, intact = 0;
  for (int rank = 0; rank < world; ++rank) {
    FSDPD_ASSIGN_OR_RETURN(const std::string answer,
                           GetFrom(store, rank, CheckKey(round, rank), kLongestFileWait));
    intact += answer == kIntact ? 1 : 0;
    if (verdict != kIntact) continue;
    verdict = answer;
    first = rank;
  }
  absl::string_view why = verdict;
  if (!same_files || intact == 0 || !absl::ConsumePrefix(&why, kDamaged)) return verdict;
  return EncodeError(absl::DataLossError(
      absl::StrCat("rank ", first, ": ", why, "; another rank reads an undamaged file of this name")));
}

// What rank 0 proposes in this round.
std::string ProposalOfRound(const absl::StatusOr<Candidates>& candidates, size_t round,
                            const std::vector<std::string>& skipped_checkpoints) {
  if (!candidates.ok()) return EncodeError(candidates.status());
  if (candidates->in_order.empty()) return kFresh;
  if (round == candidates->in_order.size()) {
    return EncodeError(absl::DataLossError(
        absl::StrCat("no intact checkpoint: ", absl::StrJoin(skipped_checkpoints, "; "))));
  }
  const ChosenCheckpoint& named = candidates->in_order[round];
  return absl::StrCat(named.own ? kOwn : kLoaded, named.path);
}

}  // namespace

absl::StatusOr<std::optional<ChosenCheckpoint>> ChooseCheckpoint(const Spec& spec, const std::string& job,
                                                                 int64_t known_step, Store* store, int rank) {
  const auto world = static_cast<int>(spec.mesh.world());
  absl::StatusOr<Candidates> candidates = Candidates();
  if (rank == 0) candidates = Find(spec.checkpoint, job, known_step);
  ChosenCheckpoint chosen;
  if (candidates.ok()) PassOverLost(candidates->lost, &chosen);
  SkippedCheckpoints skipped_checkpoints;
  for (size_t round = 0;; ++round) {
    if (rank == 0) {
      std::string name = ProposalOfRound(candidates, round, chosen.skipped_checkpoints);
      if (name == kFresh) {
        if (const absl::Status later = CheckLater(spec, job, *candidates, skipped_checkpoints, nullptr);
            !later.ok())
          name = EncodeError(later);
      }
      FSDPD_RETURN_IF_ERROR(store->Set(ProposalKey(round), name));
    }
    FSDPD_ASSIGN_OR_RETURN(const std::string name, GetFrom(store, 0, ProposalKey(round), kLongestFileWait));
    absl::string_view path = name;
    if (name == kFresh) return std::nullopt;
    chosen.own = absl::ConsumePrefix(&path, kOwn);
    if (!chosen.own && !absl::ConsumePrefix(&path, kLoaded))
      return rank == 0 ? DecodeError(name) : OfPeer(DecodeError(name));
    chosen.path = std::string(path);
    std::string answer = VerifyOwnFiles(chosen, rank, world);
    FSDPD_RETURN_IF_ERROR(store->Set(CheckKey(round, rank), answer));
    if (rank == 0) {
      FSDPD_ASSIGN_OR_RETURN(std::string verdict, VerdictOf(store, round, world, IsHf(chosen.path)));
      if (verdict == kIntact) {
        if (const absl::Status later = CheckLater(spec, job, *candidates, skipped_checkpoints, &chosen);
            !later.ok())
          verdict = answer = EncodeError(later);
      }
      FSDPD_RETURN_IF_ERROR(store->Set(VerdictKey(round), verdict));
    }
    FSDPD_ASSIGN_OR_RETURN(const std::string verdict, GetFrom(store, 0, VerdictKey(round), kLongestFileWait));
    if (verdict == kIntact) return chosen;
    absl::string_view why = verdict;
    const bool unread = absl::ConsumePrefix(&why, kUnread);
    if (!unread && !absl::ConsumePrefix(&why, kDamaged)) {
      const absl::Status error = DecodeError(verdict);
      const bool is_damaged_here = absl::StartsWith(answer, kDamaged);
      if (verdict != answer && !is_damaged_here) return OfPeer(error);
      const bool is_of_node = rank > 0 || is_damaged_here;
      return is_of_node ? WithNodeFileCause(v1::ErrorClass::KIND_CONFIGURATION, error) : error;
    }
    (unread ? skipped_checkpoints.unread : skipped_checkpoints.damaged).push_back(chosen.path);
    if (chosen.skipped_checkpoints.size() < kMaxStartNotes)
      chosen.skipped_checkpoints.push_back(absl::StrCat(DirectoryName(chosen.path), ": ", why));
  }
}

}  // namespace fsdpd
