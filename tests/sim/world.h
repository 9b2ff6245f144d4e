// Time, chance and memory of one simulated run. Everything that happens is an event of this queue, so that
// one seed says all of it: time passes from event to event only, dice are thrown here alone, and what
// happened is a list of lines with a hash, by which two runs are compared.
//
// Thread safety: none; a run is one thread.
#pragma once

#include <absl/strings/str_cat.h>
#include <absl/time/time.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace fsdpd::sim {

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  // 0 .. n-1. Not by a distribution of the library's, which each may make in another way.
  int Below(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }
  bool OneIn(int n) { return Below(n) == 0; }
  absl::Duration Between(absl::Duration least, absl::Duration most) {
    const int64_t span = absl::ToInt64Milliseconds(most - least) + 1;
    return least + absl::Milliseconds(static_cast<int64_t>(random_() % static_cast<uint64_t>(span)));
  }

 private:
  std::mt19937_64 random_;
};

class World {
 public:
  explicit World(uint64_t seed) : dice(seed), shared_(seed % 2 == 0) {}

  Dice dice;

  // Whether people share the cluster by priorities, projects and the like. Not so in every other seed, where
  // faults alone meet each other.
  bool shared() const { return shared_; }

  absl::Time now() const { return now_; }
  absl::Duration age() const { return now_ - Start(); }
  static absl::Time Start() { return absl::UnixEpoch() + absl::Hours(1); }

  // Events of one moment come in the order in which they were asked for.
  void After(absl::Duration wait, std::function<void()> event) {
    events_.emplace(std::make_pair(now_ + std::max(wait, absl::ZeroDuration()), next_++), std::move(event));
  }
  // For as long as `owner` lives: a process that has died does nothing any more.
  template <typename T>
  void After(absl::Duration wait, const std::shared_ptr<T>& owner, std::function<void(T*)> event) {
    After(wait, [weak = std::weak_ptr<T>(owner), event = std::move(event)] {
      if (const std::shared_ptr<T> alive = weak.lock()) event(alive.get());
    });
  }
  bool RunNext();
  // What has not happened never will: it may own what stands on something that ends before this does.
  void End() { events_.clear(); }

  // A line of what happened.
  template <typename... Args>
  void Tell(const Args&... args) {
    Keep(absl::StrCat(args...));
  }
  // What must never be: the first stands.
  void Violate(const std::string& invariant);
  bool violated() const { return !violation_.empty(); }
  const std::string& violation() const { return violation_; }

  uint64_t hash() const { return hash_; }
  const std::deque<std::string>& lines() const { return lines_; }
  void set_verbose(bool verbose) { verbose_ = verbose; }

 private:
  static constexpr size_t kLinesKept = 300;
  const bool shared_;
  void Keep(const std::string& line);

  absl::Time now_ = Start();
  std::map<std::pair<absl::Time, int64_t>, std::function<void()>> events_;
  int64_t next_ = 0;
  std::deque<std::string> lines_;
  uint64_t hash_ = 14695981039346656037u;
  std::string violation_;
  bool verbose_ = false;
};

// One machine's: it began at a moment of its own, and somebody may set its date.
class MachineClock : public Clock {
 public:
  explicit MachineClock(World* world)
      : world_(world), since_(world->dice.Between(absl::Hours(1), absl::Hours(9))) {}
  absl::Time Now() const override { return world_->now() + since_; }
  absl::Time Wall() const override { return world_->now() + absl::Hours(400000) + set_by_; }
  void SetDate(absl::Duration by) { set_by_ += by; }

 private:
  World* const world_;
  const absl::Duration since_;
  absl::Duration set_by_;
};

}  // namespace fsdpd::sim
