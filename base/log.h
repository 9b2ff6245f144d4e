// Logging to stderr, one line per event: UTC time, severity, process name, message. A message is a short
// fixed phrase followed by key=value pairs. A reason is logged once, when it changes, by the code that owns
// it.
#pragma once

#include <absl/strings/str_format.h>
#include <absl/strings/string_view.h>

#include <functional>
#include <string>

namespace fsdpd {

enum class Severity { kInfo, kWarning, kError };

// Sets the process name of every line ("coordinator", "agent node-0"); empty omits it, for a log of a single
// process. Call once at the start of main.
void SetLogName(absl::string_view name);

// Thread-safe. Control characters in `message` are escaped, so that it remains one line.
void Log(Severity severity, absl::string_view message);

// Passes unformatted messages to `taker` instead of stderr; null restores stderr. For programs that run the
// code of many processes in one thread. Not while other threads log.
using LogTaker = std::function<void(Severity severity, absl::string_view message)>;
void TakeLog(LogTaker taker);

template <typename... Args>
void LogInfo(const absl::FormatSpec<Args...>& format, const Args&... args) {
  Log(Severity::kInfo, absl::StrFormat(format, args...));
}
template <typename... Args>
void LogWarning(const absl::FormatSpec<Args...>& format, const Args&... args) {
  Log(Severity::kWarning, absl::StrFormat(format, args...));
}
template <typename... Args>
void LogError(const absl::FormatSpec<Args...>& format, const Args&... args) {
  Log(Severity::kError, absl::StrFormat(format, args...));
}

}  // namespace fsdpd
