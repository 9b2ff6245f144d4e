#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <utility>

namespace fsdpd {
namespace {

constexpr char kPattern[] = "%Y-%m-%dT%H:%M:%S.%eZ %L %n: %v";
constexpr char kNamelessPattern[] = "%Y-%m-%dT%H:%M:%S.%eZ %L %v";

std::shared_ptr<spdlog::logger>& Logger() {
  // Leaked: static destructors of other files may still log.
  static auto& logger = *new std::shared_ptr<spdlog::logger>([] {
    auto made = std::make_shared<spdlog::logger>("fsdpd", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern(kPattern, spdlog::pattern_time_type::utc);
    made->flush_on(spdlog::level::info);
    return made;
  }());
  return logger;
}

LogTaker& Taker() {
  static auto& taker = *new LogTaker;
  return taker;
}

spdlog::level::level_enum Level(Severity severity) {
  switch (severity) {
    case Severity::kInfo:
      return spdlog::level::info;
    case Severity::kWarning:
      return spdlog::level::warn;
    case Severity::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

}  // namespace

void SetLogName(absl::string_view name) {
  auto renamed = Logger()->clone(std::string(name));
  renamed->set_pattern(name.empty() ? kNamelessPattern : kPattern, spdlog::pattern_time_type::utc);
  Logger() = renamed;
}

void TakeLog(LogTaker taker) { Taker() = std::move(taker); }

void Log(Severity severity, absl::string_view message) {
  if (Taker()) return Taker()(severity, message);
  std::string line;
  line.reserve(message.size());
  for (const char c : message) {
    if (c == '\n') {
      line += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      line += absl::StrFormat("\\x%02x", static_cast<unsigned char>(c));
    } else {
      line += c;
    }
  }
  Logger()->log(Level(severity), spdlog::string_view_t(line));
}

}  // namespace fsdpd
