// A directory in the machine's memory, or on its disk where it has no such: for tests that store much and ask
// nothing of disks, each write of which is waited for.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <optional>
#include <string>

#include "base/temp_dir.h"

namespace fsdpd {

class MemoryDir {
 public:
  MemoryDir() {
    std::string name = "/dev/shm/fsdpd-test-XXXXXX";
    path_ = mkdtemp(name.data()) != nullptr ? name : on_disk_.emplace().path();
  }
  ~MemoryDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  MemoryDir(const MemoryDir&) = delete;
  MemoryDir& operator=(const MemoryDir&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::optional<TempDir> on_disk_;
  std::string path_;
};

}  // namespace fsdpd
