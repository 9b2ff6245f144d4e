// Temporary directory in memory, or on disk if /dev/shm is not available. For tests that store much and do
// not depend on disk behavior, where each fsync would cost time.
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
