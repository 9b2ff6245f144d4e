// Temporary directory of a test, removed with its content.
#pragma once

#include <absl/strings/string_view.h>

#include <filesystem>
#include <string>

namespace fsdpd {

class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string File(absl::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
};

}  // namespace fsdpd
