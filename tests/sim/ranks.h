// Ranks without processes: what a rank says, when it ends and how, as fsdp/rank_main would have it, on the
// real socket to its agent and in simulated time. Ranks of an attempt find each other through the rendezvous,
// train together, save into a directory that all nodes share, and fail when one of them is gone.
//
// It also knows the truth: which ranks are alive, and what they have saved, which the referee holds against
// what the coordinator believes.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/attempt.h"
#include "agent/rank_body.h"
#include "base/frame.h"
#include "base/unique_fd.h"
#include "proto/fsdpd/v1/rank.pb.h"
#include "tests/sim/world.h"

namespace fsdpd::sim {

class Ranks;

// One rank, from its begin until nothing of it is left.
class RankLife : public std::enable_shared_from_this<RankLife> {
 public:
  RankLife(Ranks* ranks, const std::string& node, std::function<void()> wake, UniqueFd socket);
  ~RankLife();

  void Read();  // What its agent has sent.
  void Signal(int signal);

  const std::string& node() const { return node_; }
  const RankId& id() const { return id_; }
  bool launched() const { return launched_; }
  bool alive() const { return !end_.has_value(); }
  bool gone() const;  // Nothing of its tree is left either.
  int device() const { return launch_.device(); }
  const std::optional<ProcessEnd>& end() const { return end_; }
  int ended_fd() const { return ended_.get(); }
  bool stopped() const { return stopped_; }

 private:
  friend class Ranks;
  enum class Phase { kBegun, kMeeting, kTraining, kLeaving };

  void Later(absl::Duration least, absl::Duration most, std::function<void(RankLife*)> what);
  void Take(const v1::AgentToRank& message);
  void Begin();
  void Measure();
  void LockDirectory();
  void Meet();
  void Started();
  void Step();
  void Finish();
  void Save(bool leaves);
  void LoseItsPeer(int rank);
  void End(int exit_code, int signal, const std::string& error, std::optional<v1::RankFault> fault = {});
  void Say(const v1::RankToAgent& message);
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
  Phase phase_ = Phase::kBegun;
  absl::Time asked_for_lock_;
  std::set<int64_t> awaited_;  // Keys of the rendezvous, by request.
  int64_t step_ = 0;
  int64_t saved_ = 0;
  bool told_to_leave_ = false;
  bool stopped_ = false;
  bool stubborn_ = false;  // SIGTERM does nothing.
  std::vector<int> pending_;
  std::optional<ProcessEnd> end_;
  absl::Time gone_at_;
};

// All of them, and the directories that they share.
class Ranks {
 public:
  using Begun = std::function<void(const RankLife& rank)>;
  // `begun`: a rank has been told what it is.
  Ranks(World* world, Begun begun) : world_(world), begun_(std::move(begun)) {}

  std::unique_ptr<RankBody> Spawn(const std::string& node, std::function<void()> wake);

  void ReadAll(const std::string& node);
  // Its node is without power, or its agent is killed.
  void KillAll(const std::string& node);
  std::vector<std::shared_ptr<RankLife>> Alive() const;
  // And those that have ended, and not all of their tree.
  std::vector<std::shared_ptr<RankLife>> Left() const;
  std::vector<std::shared_ptr<RankLife>> Of(const AttemptId& attempt) const;

  // When the node's last agent that has ended did so; in the past where none has.
  absl::Time AgentEnded(const std::string& node) const;

  // Of ranks that ended well after all steps.
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
  std::vector<std::shared_ptr<RankLife>> lives_;  // Of which something is left.
  std::map<std::string, Directory> directories_;
  std::map<AttemptId, int> finished_;
  std::map<std::string, absl::Time> agent_ended_;
};

}  // namespace fsdpd::sim
