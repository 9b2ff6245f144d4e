#include "base/process/text_files.h"

#include <stdio.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "base/errno_status.h"

namespace fsdpd {

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();  // Unlike an istreambuf_iterator, it does not throw after a read error.
  return text.str();
}

absl::Status ReplaceText(const std::string& path, const std::string& text) {
  const std::string half = path + ".tmp";
  std::ofstream file(half);
  file << text;
  file.close();
  if (file.good() && rename(half.c_str(), path.c_str()) == 0) return absl::OkStatus();
  const absl::Status failed = ErrnoStatus(path);
  unlink(half.c_str());
  return failed;
}

std::vector<std::filesystem::directory_entry> EntriesIn(const std::filesystem::path& directory,
                                                        std::error_code* error) {
  std::vector<std::filesystem::directory_entry> entries;
  std::error_code listed;
  std::filesystem::directory_iterator entry(directory, listed);
  for (const std::filesystem::directory_iterator end; !listed && entry != end; entry.increment(listed))
    entries.push_back(*entry);
  if (error != nullptr) *error = listed;
  return entries;
}

}  // namespace fsdpd
