// Small files that are read and replaced as a whole, and entries of directories. Thread-safe.
#pragma once

#include <absl/status/status.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

namespace fsdpd {

// The content; "" if the file cannot be read.
std::string ReadText(const std::string& path);

// Readers see the old content or the new one. Errors: those of ErrnoStatus() (base/errno_status.h).
absl::Status ReplaceText(const std::string& path, const std::string& text);

// The entries that were found before an error, which `error` gets.
std::vector<std::filesystem::directory_entry> EntriesIn(const std::filesystem::path& directory,
                                                        std::error_code* error = nullptr);

}  // namespace fsdpd
