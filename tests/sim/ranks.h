// Simulated ranks without processes. They behave like fsdp/rank_main, with the real socket to the agent and
// in simulated time. Ranks of an attempt meet through the rendezvous, train together, save to a shared
// directory, and fail when a peer is lost.
//
// Ranks also knows the true state (live ranks, saved checkpoints), with which the invariant checker compares
// the coordinator's.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/launch/attempt.h"
#include "agent/ranks/rank_body.h"
#include "base/rank/frame.h"
#include "base/unique_fd.h"
#include "proto/fsdpd/v1/rank.pb.h"
#include "tests/sim/world.h"

namespace fsdpd::sim {

class Ranks;

// One rank, from its start until its process tree is gone.
class RankLife : public std::enable_shared_from_this<RankLife> {
 public:
  RankLife(Ranks* ranks, const std::string& node, std::function<void()> wake, UniqueFd socket);
  ~RankLife();

  void Read();  // Reads messages from its agent.
  void Signal(int signal);

  const std::string& node() const { return node_; }
  const RankId& id() const { return id_; }
  bool launched() const { return launched_; }
  bool alive() const { return !end_.has_value(); }
  bool gone() const;  // The whole process tree is gone.
  int device() const { return launch_.device(); }
  const std::optional<ProcessEnd>& end() const { return end_; }
  int ended_fd() const { return ended_.get(); }
  bool stopped() const { return stopped_; }

 private:
  friend class Ranks;
  enum class Phase { kStarted, kRendezvous, kTraining, kLeaving };

  void Later(absl::Duration least, absl::Duration most, std::function<void(RankLife*)> what);
  void Take(const v1::AgentToRank& message);
  void Begin();
  void Measure();
  void LockDirectory();
  void JoinRendezvous();
  void Started();
  void Step();
  void Finish();
  void Save(bool leaves);
  void OnPeerLost(int rank);
  void End(int exit_code, int signal, const std::string& error, std::optional<v1::ErrorClass> fault = {});
  void Send(const v1::RankToAgent& message);
  std::string DirectoryName() const { return launch_.spec().checkpoint().dir(); }

  Ranks* const ranks_;
  World* const world_;
  const std::string node_;
  const std::function<void()> wake_;
  UniqueFd socket_;
  UniqueFd ended_;
  FrameBuffer received_;
  RankId id_;
  v1::RankLaunch launch_;
  bool launched_ = false;
  Phase phase_ = Phase::kStarted;
  absl::Time asked_for_lock_;
  std::set<int64_t> awaited_;  // Open rendezvous requests.
  int64_t step_ = 0;
  int64_t saved_ = 0;
  bool leave_requested_ = false;
  bool stopped_ = false;
  bool ignores_sigterm_ = false;
  std::vector<int> pending_;
  std::optional<ProcessEnd> end_;
  absl::Time gone_at_;
};

// All ranks, and the checkpoint directories that they share.
class Ranks {
 public:
  using Begun = std::function<void(const RankLife& rank)>;
  // `begun` is called when a rank got its launch.
  Ranks(World* world, Begun begun) : world_(world), begun_(std::move(begun)) {}

  std::unique_ptr<RankBody> Spawn(const std::string& node, std::function<void()> wake);

  void ReadAll(const std::string& node);
  // The node lost power, or its agent was killed.
  void KillAll(const std::string& node);
  std::vector<std::shared_ptr<RankLife>> Alive() const;
  // Includes ranks that ended while their process tree is not gone.
  std::vector<std::shared_ptr<RankLife>> Left() const;
  std::vector<std::shared_ptr<RankLife>> Of(const AttemptId& attempt) const;

  // When an agent of the node last ended; InfinitePast if none has.
  absl::Time AgentEnded(const std::string& node) const;

  // Number of ranks that succeeded after all steps.
  int Finished(const AttemptId& attempt) const;
  // Steps of which a checkpoint was committed.
  std::set<int64_t> Saved(const std::string& directory) const;

 private:
  friend class RankLife;
  struct Directory {
    std::set<int64_t> steps;
    std::weak_ptr<RankLife> holder;
  };

  World* const world_;
  const Begun begun_;
  std::vector<std::shared_ptr<RankLife>> lives_;  // Ranks whose process tree is not gone.
  std::map<std::string, Directory> directories_;
  std::map<AttemptId, int> finished_;
  std::map<std::string, absl::Time> agent_ended_;
};

}  // namespace fsdpd::sim
