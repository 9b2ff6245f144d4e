// One log line per event, to stderr: UTC time, severity, process name, message. A message states its facts as
// key=value pairs after a short sentence. A reason is logged once, when it changes, by the code that owns it.
#pragma once

#include <absl/strings/str_format.h>
#include <absl/strings/string_view.h>

#include <functional>
#include <string>

namespace fsdpd {

enum class Severity { kInfo, kWarning, kError };

// Names the process in every line ("coordinator", "agent node-0"); empty leaves the name out, for a log that
// is one process's own. Call once at start of main.
void SetLogName(absl::string_view name);

// Thread-safe. Control characters in `message` are escaped, so a line stays a line.
void Log(Severity severity, absl::string_view message);

// Lines go to `taker` instead, as they are; with none, to stderr again. For who runs many processes' code in
// one thread and tells it himself. Not while other threads log.
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
