#include "coordinator/attempt/hang.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/lookup.h"
#include "base/text.h"
#include "coordinator/attempt/rank_positions.h"

namespace fsdpd {
namespace {

// (step, evaluation, instruction): a total order, in which an evaluation follows the training of its step.
using Place = std::tuple<int64_t, bool, int64_t>;

Place PlaceOf(const v1::LanePosition& lane) { return {lane.step(), lane.evaluation(), lane.instruction()}; }

// The position of the lane with this name; the lowest if it has not started, or has ended.
Place Reached(const StalledRank& rank, const std::string& lane) {
  for (const v1::LanePosition& each : rank.no_progress.lanes()) {
    if (each.lane() == lane) return PlaceOf(each);
  }
  return {-1, false, -1};
}

bool IsStopped(const StalledRank& rank) { return rank.no_progress.process() == v1::PROCESS_STATE_STOPPED; }
bool IsAbsent(const StalledRank& rank) {
  return rank.ended || IsStopped(rank) || rank.no_progress.process() == v1::PROCESS_STATE_BLOCKED ||
         rank.no_progress.process() == v1::PROCESS_STATE_GONE;
}

// Stages send and receive with their own peers: other ranks of the same stage communicate with other ranks.
bool Crosses(const v1::LanePosition& lane) { return lane.lane() == "send" || lane.lane() == "receive"; }

// The communication that the rank is inside of while it trains and computes nothing; null otherwise.
const v1::LanePosition* IdleIn(const StalledRank& rank) {
  if (rank.ended || rank.no_progress.phase() != v1::RANK_PHASE_TRAINING) return nullptr;
  const v1::LanePosition* exchange = nullptr;
  for (const v1::LanePosition& lane : rank.no_progress.lanes()) {
    if (!lane.running()) continue;
    if (!lane.exchanges()) return nullptr;
    if (exchange == nullptr) exchange = &lane;
  }
  return exchange;
}

// The communication in which `rank` waits for `other`; null if it does not.
const v1::LanePosition* WaitOf(const StalledRank& rank, const StalledRank& other) {
  if (rank.ended || other.rank == rank.rank) return nullptr;
  // Stages run different programs, so positions are not comparable; only idle stages wait.
  if (rank.stage != other.stage) return IdleIn(other) == nullptr ? IdleIn(rank) : nullptr;
  for (const v1::LanePosition& lane : rank.no_progress.lanes()) {
    if (lane.exchanges() && lane.running() && !Crosses(lane) && Reached(other, lane.lane()) < PlaceOf(lane))
      return &lane;
  }
  return nullptr;
}

// By stage and lane, the position of the rank that is furthest behind; and whether a rank that is not idle
// exists in any stage.
struct Lowest {
  std::map<std::pair<int, std::string>, Place> places;
  std::map<int, bool> busy;
};
Lowest LowestOf(const std::vector<StalledRank>& ranks) {
  Lowest lowest;
  for (const StalledRank& rank : ranks) {
    lowest.busy[rank.stage] |= IdleIn(rank) == nullptr;
    for (const v1::LanePosition& lane : rank.no_progress.lanes())
      lowest.places.emplace(std::pair(rank.stage, lane.lane()), PlaceOf(lane));
  }
  // A minimum over all ranks of the stage and not only over those that report the lane: a missing lane has
  // the lowest position, and every rank inside a later collective waits for it.
  for (auto& [of, place] : lowest.places) {
    for (const StalledRank& rank : ranks) {
      if (rank.stage == of.first) place = std::min(place, Reached(rank, of.second));
    }
  }
  return lowest;
}

// Whether the rank waits for any other rank.
bool Waits(const StalledRank& rank, const Lowest& lowest) {
  const bool others_busy = std::any_of(lowest.busy.begin(), lowest.busy.end(), [&](const auto& stage) {
    return stage.first != rank.stage && stage.second;
  });
  if (others_busy && IdleIn(rank) != nullptr) return true;
  return std::any_of(rank.no_progress.lanes().begin(), rank.no_progress.lanes().end(),
                     [&](const v1::LanePosition& lane) {
                       return lane.exchanges() && lane.running() && !Crosses(lane) &&
                              lowest.places.at({rank.stage, lane.lane()}) < PlaceOf(lane);
                     });
}

struct Waiting {
  int ranks = 0;
  const StalledRank* first = nullptr;
  const v1::LanePosition* lane = nullptr;  // Lane of the first rank.
};

Waiting FindWaitersFor(const StalledRank& cause, const std::vector<StalledRank>& ranks) {
  Waiting waiting;
  for (const StalledRank& rank : ranks) {
    const v1::LanePosition* lane = WaitOf(rank, cause);
    if (lane == nullptr) continue;
    if (waiting.ranks++ > 0) continue;
    waiting.first = &rank;
    waiting.lane = lane;
  }
  return waiting;
}

const StalledRank* FirstOf(const std::vector<StalledRank>& ranks, bool (*is)(const StalledRank&)) {
  const auto found = std::find_if(ranks.begin(), ranks.end(), is);
  return found == ranks.end() ? nullptr : &*found;
}

// The rank that most ranks wait for, among ranks that do not wait; null if no rank waits for any of them.
const StalledRank* FindBehind(const std::vector<StalledRank>& ranks, const Lowest& lowest) {
  const StalledRank* behind = nullptr;
  int max_waiting = 0;
  for (const StalledRank& rank : ranks) {
    if (Waits(rank, lowest)) continue;
    const int waiting = FindWaitersFor(rank, ranks).ranks;
    if (waiting <= max_waiting) continue;
    behind = &rank;
    max_waiting = waiting;
  }
  return behind;
}

const StalledRank* FindCause(const std::vector<StalledRank>& ranks) {
  // Order of precedence as in hang.h: stopped, behind, the last remaining rank, unresponsive.
  if (const StalledRank* stopped = FirstOf(ranks, IsStopped)) return stopped;
  const Lowest lowest = LowestOf(ranks);
  const bool any_waits =
      std::any_of(ranks.begin(), ranks.end(), [&](const StalledRank& rank) { return Waits(rank, lowest); });
  if (any_waits) {
    if (const StalledRank* behind = FindBehind(ranks, lowest)) return behind;
  }
  // The last rank of its job, such as rank 0 during the export.
  const auto left = [](const StalledRank& rank) { return !rank.ended; };
  if (std::count_if(ranks.begin(), ranks.end(), left) == 1) return FirstOf(ranks, left);
  // If all ranks are blocked in the kernel, a shared resource is the cause.
  if (std::all_of(ranks.begin(), ranks.end(), IsAbsent)) return nullptr;
  return FirstOf(ranks, [](const StalledRank& rank) { return !rank.ended && IsAbsent(rank); });
}

constexpr std::pair<v1::RankPhase, const char*> kPhases[] = {
    {v1::RANK_PHASE_STARTING, "while it starts"},
    {v1::RANK_PHASE_LOADING, "while it connects to other ranks and loads its state"},
    {v1::RANK_PHASE_READING, "while it reads its data"},
    {v1::RANK_PHASE_SAVING, "while it waits for a checkpoint to be written"},
    {v1::RANK_PHASE_ENDING, "after its last step"}};
constexpr std::pair<v1::ProcessState, const char*> kProcesses[] = {
    {v1::PROCESS_STATE_STOPPED, "stopped by a signal"},
    {v1::PROCESS_STATE_BLOCKED, "blocked in the kernel"},
    {v1::PROCESS_STATE_GONE, "its process has ended"}};

std::string WhereOf(const StalledRank& rank) {
  std::string text = Lookup(kPhases, rank.no_progress.phase(), "");
  if (rank.no_progress.position().empty()) return text;
  return absl::StrCat(text, text.empty() ? "" : ", ", "in ", rank.no_progress.position());
}

const char* DescribeProcess(const StalledRank& rank) {
  return rank.ended ? "it has ended" : Lookup(kProcesses, rank.no_progress.process(), "");
}

std::string DescribeWaits(const Waiting& waiting) {
  if (waiting.ranks == 0) return "";
  const v1::LanePosition& lane = *waiting.lane;
  return absl::StrCat("; ", waiting.ranks, waiting.ranks == 1 ? " rank waits" : " ranks wait",
                      " for it, rank ", waiting.first->rank, " in ", lane.name(),
                      lane.evaluation() ? " of the evaluation after step " : " of step ", lane.step());
}

std::string DescribeNoCause(const std::vector<StalledRank>& ranks) {
  const StalledRank& first = *FirstOf(ranks, [](const StalledRank& rank) { return !rank.ended; });
  const Lowest lowest = LowestOf(ranks);
  const bool any_waits =
      std::any_of(ranks.begin(), ranks.end(), [&](const StalledRank& rank) { return Waits(rank, lowest); });
  if (any_waits) return absl::StrCat("all ranks wait for each other, rank ", first.rank, " ", WhereOf(first));
  const bool same = std::all_of(ranks.begin(), ranks.end(), [&](const StalledRank& rank) {
    return rank.ended || (rank.no_progress.position() == first.no_progress.position() &&
                          rank.no_progress.phase() == first.no_progress.phase());
  });
  if (same) return absl::StrCat("all ranks are blocked at the same place, ", WhereOf(first));
  return absl::StrCat("no rank waits for another, rank ", first.rank, " is blocked ", WhereOf(first));
}

}  // namespace

HangCause FindHang(const std::vector<StalledRank>& ranks) {
  HangCause cause;
  int64_t still_ms = 0;
  v1::Job places;
  for (const StalledRank& rank : ranks) {
    if (rank.ended) continue;
    still_ms = still_ms == 0 ? rank.no_progress.no_progress_ms()
                             : std::min(still_ms, rank.no_progress.no_progress_ms());
    const std::string process = DescribeProcess(rank);
    TakePosition(rank.rank, absl::StrCat(process, process.empty() ? "" : "; ", WhereOf(rank)), &places);
  }
  FSDPD_CHECK(still_ms > 0);
  *cause.hang.mutable_positions() = places.positions();
  const StalledRank* found = FindCause(ranks);
  if (found == nullptr) {
    cause.hang.set_kind(v1::Job::Hang::KIND_NO_RANK);
    cause.hang.set_no_progress_ms(still_ms);
    cause.text = absl::StrCat("no progress for ", HumanSeconds(1e-3 * static_cast<double>(still_ms)), "; ",
                              DescribeNoCause(ranks));
    return cause;
  }
  cause.rank = found->rank;
  cause.hang.set_kind(IsAbsent(*found) ? v1::Job::Hang::KIND_UNRESPONSIVE : v1::Job::Hang::KIND_BEHIND);
  // A rank that a user stopped, or holds in a debugger, does not blame its node; nor does a disk that several
  // ranks wait for, because they may share it.
  const auto blocked = [](const StalledRank& rank) {
    return !rank.ended && rank.no_progress.process() == v1::PROCESS_STATE_BLOCKED;
  };
  cause.hang.set_caused_by_node(blocked(*found) && std::count_if(ranks.begin(), ranks.end(), blocked) == 1);
  if (!found->ended) still_ms = found->no_progress.no_progress_ms();
  cause.hang.set_no_progress_ms(still_ms);
  cause.hang.set_evidence(found->no_progress.evidence());
  const std::string process = DescribeProcess(*found), where = found->ended ? "" : WhereOf(*found);
  cause.text = absl::StrCat("no progress for ", HumanSeconds(1e-3 * static_cast<double>(still_ms)),
                            process.empty() ? "" : ", ", process, where.empty() ? "" : ", ", where,
                            DescribeWaits(FindWaitersFor(*found, ranks)));
  return cause;
}

}  // namespace fsdpd
