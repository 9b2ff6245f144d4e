// Simulated disk of the coordinator's state: an SQLite VFS that can be full, and that can die during a write.
// When it dies, each write that was not synced is present, missing or torn, as random numbers decide. A power
// loss leaves such states; a killed process loses less.
//
// One instance at a time, which is SQLite's default VFS during its lifetime. The files are ordinary ones.
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

  // The machine dies before or during the n-th write or sync from now on, and calls `died`. `died` must not
  // use SQLite, which is in a call.
  void DieAfter(int operations, std::function<void()> died);
  bool dead() const { return dead_; }
  void Die();
  // REQUIRES: all files are closed. Settles the content of unsynced writes for the next process.
  void Revive();

 private:
  friend struct DiskFile;
  struct Write {
    int64_t offset = 0;
    std::string before;  // The replaced bytes; fewer at the end of the file.
    int64_t size_before = 0;
    std::string bytes;  // Empty: the file was truncated to `offset`.
  };
  struct Pending {
    std::string path;
    std::list<Write> writes;  // Not yet synced.
  };

  Pending* Of(const char* path);
  bool CountOperation();  // Counts an operation; false when the disk is dead.
  void Settle(Pending* pending);

  World* const world_;
  std::list<Pending> files_;
  bool full_ = false;
  bool dead_ = false;
  int operations_left_ = -1;
  std::function<void()> died_;
};

}  // namespace fsdpd::sim
