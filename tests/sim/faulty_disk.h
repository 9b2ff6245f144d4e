// The disk under the coordinator's state, as SQLite sees it: a VFS of its own that can be full, and that can
// die in the middle of a write. What was written and not synced when it dies is there, is not, or is there in
// part, as the dice have it: that is what a machine without power leaves, and a process that is killed leaves
// more.
//
// One at a time; while it lives it is SQLite's default. The files themselves are ordinary ones.
#pragma once

#include <sqlite3.h>

#include <functional>
#include <list>
#include <memory>
#include <string>

#include "tests/sim/world.h"

namespace fsdpd::sim {

class FaultyDisk {
 public:
  explicit FaultyDisk(World* world);
  ~FaultyDisk();
  FaultyDisk(const FaultyDisk&) = delete;
  FaultyDisk& operator=(const FaultyDisk&) = delete;

  void SetFull(bool full) { full_ = full; }
  bool full() const { return full_; }

  // The machine dies at the n-th write or sync from now on, before or after it; `died` is called at that
  // moment. It must not touch SQLite: it is in the middle of a call.
  void DieAfter(int operations, std::function<void()> died);
  bool dead() const { return dead_; }
  void Die();
  // REQUIRES: whoever had files open has closed them. What is left of them is what the next one finds.
  void Revive();

 private:
  friend struct DiskFile;
  struct Write {
    int64_t offset = 0;
    std::string before;  // What it replaced; shorter where the file was.
    int64_t size_before = 0;
    std::string bytes;  // Empty: the file was cut to `offset`.
  };
  struct Pending {
    std::string path;
    std::list<Write> writes;  // Not synced.
  };

  Pending* Of(const char* path);
  bool Operate();  // False when the disk is dead.
  void TakeBack(Pending* pending);

  World* const world_;
  std::list<Pending> files_;
  bool full_ = false;
  bool dead_ = false;
  int left_ = -1;
  std::function<void()> died_;
};

}  // namespace fsdpd::sim
