// Event queue, random numbers and log of one simulated run. A seed determines the run: all events are in this
// queue, time advances only between events, and all random numbers come from here. The log's hash identifies
// a run, so two runs can be compared.
//
// Not thread-safe; a run uses one thread.
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
  // 0 .. n-1. Distributions of the standard library differ between implementations.
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

  // Whether users share the cluster with priorities, projects and dependencies. False in odd seeds, which
  // only combine failures.
  bool shared() const { return shared_; }

  absl::Time now() const { return now_; }
  absl::Duration age() const { return now_ - Start(); }
  static absl::Time Start() { return absl::UnixEpoch() + absl::Hours(1); }

  // Simultaneous events run in the order in which they were scheduled.
  void After(absl::Duration wait, std::function<void()> event) {
    events_.emplace(std::make_pair(now_ + std::max(wait, absl::ZeroDuration()), next_++), std::move(event));
  }
  // Dropped if `owner` no longer exists: events of a dead process do not run.
  template <typename T>
  void After(absl::Duration wait, const std::shared_ptr<T>& owner, std::function<void(T*)> event) {
    After(wait, [weak = std::weak_ptr<T>(owner), event = std::move(event)] {
      if (const std::shared_ptr<T> alive = weak.lock()) event(alive.get());
    });
  }
  bool RunNext();
  // Drops all pending events, which may own objects that depend on shorter-lived ones.
  void End() { events_.clear(); }

  // Appends a line to the log.
  template <typename... Args>
  void Log(const Args&... args) {
    Append(absl::StrCat(args...));
  }
  // Records a violated invariant; the first one is reported.
  void ReportViolation(const std::string& invariant);
  bool violated() const { return !violation_.empty(); }
  const std::string& violation() const { return violation_; }

  uint64_t hash() const { return hash_; }
  const std::deque<std::string>& lines() const { return lines_; }
  void set_verbose(bool verbose) { verbose_ = verbose; }

 private:
  static constexpr size_t kMaxLines = 300;
  const bool shared_;
  void Append(const std::string& line);

  absl::Time now_ = Start();
  std::map<std::pair<absl::Time, int64_t>, std::function<void()>> events_;
  int64_t next_ = 0;
  std::deque<std::string> lines_;
  uint64_t hash_ = 14695981039346656037u;
  std::string violation_;
  bool verbose_ = false;
};

// A machine's clock: its monotonic time starts at a random value, and its date can be changed.
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
